/** Questions to the user, as modal dialogs: Escape and "Cancel" answer no. */

import { html, nothing, render } from "../vendor/lit-html/lit-html.js";

/**
 * Ask before something that cannot be undone, with a field if need be. Return the data if it is to be done, else null.
 * @param {{ title: string, text: string, action: string, field?: { name: string, label: string, hint: string } }} question
 */
export function confirm({ title, text, action, field }) {
  return open(html`
    <h2 id="dialog-title">${title}</h2>
    <p>${text}</p>
    ${field ? html`<label><span>${field.label}</span><input name=${field.name} placeholder=${field.hint} autocomplete="off" /></label>` : nothing}
    ${menu(action, "danger")}
  `);
}

/** Ask for one of some names; return null if none is chosen. @param {{ title: string, label: string, names: string[], action: string }} question */
export async function choose({ title, label, names, action }) {
  const answer = await open(html`
    <h2 id="dialog-title">${title}</h2>
    <label>${label} <select name="name" autofocus>${names.map((name) => html`<option>${name}</option>`)}</select></label>
    ${menu(action)}
  `);
  return answer && String(answer.get("name"));
}

/** Ask for a key of the server; return null if none is given. @param {boolean} wasRefused */
export async function askForKey(wasRefused) {
  const answer = await open(html`
    <h2 id="dialog-title">This server requires a key</h2>
    <p>Ask its operator for a key. Your key stays in this tab.</p>
    ${wasRefused
      ? html`<p class="error" role="alert">The server does not recognize that key.</p>`
      : nothing}
    <label>Key <input name="key" type="password" required autofocus autocomplete="off"></label>
    ${menu("Continue")}
  `);
  return answer && String(answer.get("key")).trim();
}

/** Return the buttons of a question; nothing dangerous has the focus. @param {string} action */
const menu = (action, kind = "primary") => html`<menu>
  <button type="button" ?autofocus=${kind === "danger"} @click=${close}>Cancel</button>
  <button class=${kind} value="yes">${action}</button>
</menu>`;

/** @param {FieldEvent} event */
const close = (event) => event.currentTarget.closest("dialog")?.close();

/** Show something to read. @param {string} title @param {Renderable} content */
export function showDialog(title, content) {
  const parts = html`
    <h2 id="dialog-title">${title}</h2>
    ${content}
    <menu><button type="button" autofocus @click=${close}>Close</button></menu>
  `;
  return open(parts, "wide");
}

/** Show a dialog; return the data of its form when that is submitted, null if it is closed. @param {Renderable} content @returns {Promise<FormData | null>} */
function open(content, kind = "") {
  const dialog = document.createElement("dialog");
  dialog.className = kind;
  dialog.setAttribute("aria-labelledby", "dialog-title");
  render(html`<form method="dialog">${content}</form>`, dialog);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue ? new FormData(dialog.querySelector("form") ?? undefined) : null);
    });
  });
}
