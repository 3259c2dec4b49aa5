/** The text of PDF files, as pdf.js reads it: without wasm, pictures and fonts. Loaded with the first of them. */

import { count, plural } from "../format.js";
import { getDocument, GlobalWorkerOptions } from "../vendor/pdfjs/pdf.min.js";

const LIMITS = { bytes: 64 * 1024 * 1024, pages: 1000, ms: 60_000 };
const SETTINGS = { useWasm: false, useWorkerFetch: false, isOffscreenCanvasSupported: false, enableXfa: false, maxImageSize: 0, verbosity: 0 };

GlobalWorkerOptions.workerSrc = String(new URL("../vendor/pdfjs/pdf.worker.min.js", import.meta.url));

/** Return the text of a file and its number of pages; `most`: letters. Throws an error with the reason. @param {File} file @param {number} most */
export async function readPdf(file, most) {
  if (file.size > LIMITS.bytes) throw new Error("it is larger than 64 MB");
  const reading = getDocument({ ...SETTINGS, data: await file.arrayBuffer() });
  const late = new Error("reading it takes longer than a minute");
  try {
    return await Promise.race([readPages(reading, most), new Promise((_, reject) => setTimeout(reject, LIMITS.ms, late))]);
  } finally {
    reading.destroy();
  }
}

/** @param {ReturnType<typeof getDocument>} reading @param {number} most */
async function readPages(reading, most) {
  const document = await reading.promise.catch(explain);
  const pages = document.numPages;
  if (pages > LIMITS.pages) throw new Error(`it has ${count(pages)} pages, and the limit is ${count(LIMITS.pages)}`);
  let text = "";
  for (let number = 1; number <= pages; number++) {
    const page = await document.getPage(number).catch(explain);
    const { items } = await page.getTextContent().catch(explain);
    text += `${items.map(({ str = "", hasEOL }) => str + (hasEOL ? "\n" : "")).join("").trim()}\n\n`;
    if (text.length > most) throw new Error(`the text of its first ${plural(number, "page")} already exceeds the limit of a message`);
    page.cleanup();
  }
  if (!text.trim()) throw new Error("it has no text, so it is probably a scan; run OCR on it first, or attach its pages as images");
  return { text: text.trim(), pages };
}

/** @param {Error} error @returns {never} */
function explain({ name }) {
  throw new Error(name === "PasswordException" ? "it is encrypted; remove its password first" : "it is damaged, or not a PDF");
}
