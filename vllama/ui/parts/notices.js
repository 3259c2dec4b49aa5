/** Messages about what the user has done: successes that go away, errors that stay until dismissed. */

import { changes } from "../live/state.js";
import { explain } from "../server.js";
import { html } from "../vendor/lit-html/lit-html.js";

const SHOWN_MS = 5000;

let notices = [];

/** Say that something was done. */
export function showSuccess(text) {
  add({ text, kind: "success" });
}

/** Say why something could not be done. What the user has stopped is no error. */
export function showError(error) {
  if (error?.name !== "AbortError") add({ text: explain(error), kind: "error" });
}

/** Return the template of all messages. */
export function noticeList() {
  const row = (notice) => html`<div class="notice ${notice.kind}">
    <span>${notice.text}</span>
    <button class="quiet" aria-label="Dismiss" @click=${() => remove(notice)}>✕</button>
  </div>`;
  const of = (kind) => notices.filter((notice) => notice.kind === kind).map(row);
  return html`<div class="notices">
    <div role="status">${of("success")}</div>
    <div role="alert">${of("error")}</div>
  </div>`;
}

function add(notice) {
  notices = [...notices.filter((other) => other.text !== notice.text), notice];
  if (notice.kind === "success") setTimeout(() => remove(notice), SHOWN_MS);
  changes.dispatchEvent(new Event("notices"));
}

function remove(notice) {
  notices = notices.filter((other) => other !== notice);
  changes.dispatchEvent(new Event("notices"));
}
