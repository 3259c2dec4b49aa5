// A classic script in the head: it shows the names of the models before any module has come, which
// takes seconds on a slow line. main.js takes over the request, and what is shown.
(async () => {
  const PATIENCE_MS = 1000; // a server that starts may take longer to list its models
  const key = sessionStorage.getItem("vllama-key");
  /** @type {Record<string, string>} */
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const answer = fetch("../api/tags", { headers, cache: "no-store" });
  globalThis.early = { path: "api/tags", answer: answer.then((response) => response.clone()) };
  globalThis.early.answer.catch(() => {}); // main.js says what is wrong
  await new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve));
  if (/^(#\/?(models.*)?)?$/.test(location.hash)) {
    const patience = new Promise((resolve) => setTimeout(resolve, PATIENCE_MS));
    await Promise.race([showNames(), patience]).catch(() => {});
  }
  for (const { localName, attributes } of /** @type {HTMLTemplateElement} */ (document.getElementById("later")).content.children) {
    const made = document.createElement(localName); // a copy of a script would not run
    for (const { name, value } of attributes) made.setAttribute(name, value);
    document.head.append(made);
  }

  async function showNames() {
    const kept = (key ? sessionStorage : localStorage).getItem("models"); // see live/library.js
    /** @type {{ models: LocalModel[] }} */
    const { models } = kept ? JSON.parse(kept) : await (await answer).json();
    const list = document.createElement("ul");
    list.className = "first";
    list.append(...models.map(({ name }) => Object.assign(document.createElement("li"), { textContent: name })));
    document.querySelector("app-shell > main:empty")?.append(list); // unless main.js was faster
  }
})();
