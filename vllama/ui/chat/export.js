export async function exportAll() {}
export async function exportOne() {}
export async function exportMarkdown() {}
export async function importFile() { return 0; }
