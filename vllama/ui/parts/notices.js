/** Messages about what the user has done; each goes away by itself, and can be dismissed before. */

import { changes, state } from "../live/state.js";
import { explain, isLocked, Unreachable } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

const SHOWN_MS = { success: 5000, error: 15_000 };

/** @type {Notice[]} */
let notices = [];

/** Say that something was done. @param {string} text */
export function showSuccess(text) {
  add({ text, kind: "success" });
}

/** Say why something could not be done. What the user has stopped is no error. @param {any} error */
export function showError(error) {
  if (error?.name === "AbortError" || isLocked(error)) return; // the banner asks for a key
  add({ text: explain(error), kind: "error", unreachable: error instanceof Unreachable });
}

/** Wait for some work, and show why it failed. @param {unknown} work */
export async function attempt(work) {
  try {
    await work;
  } catch (error) {
    showError(error);
  }
}

/** Drop all errors: the user has left the page that they were about. */
export function dropErrors() {
  drop(({ kind }) => kind === "error");
}

changes.addEventListener("connection", () => {
  if (state.connection.status === "live") drop(({ unreachable }) => unreachable);
});

/** Return the template of all messages, of which the newest is shown. */
export function noticeList() {
  const newest = notices.at(-1);
  /** @param {Notice} notice */
  const row = (notice) => html`<div class="notice ${notice.kind}" ?hidden=${notice !== newest}>
    <span>${notice.text}</span>
    ${notices.length > 1 ? html`<small>+${notices.length - 1}</small>` : nothing}
    <button class="quiet" aria-label="Dismiss" @click=${() => drop((other) => other === notice)}>✕</button>
  </div>`;
  /** @param {Notice["kind"]} kind */
  const of = (kind) => notices.filter((notice) => notice.kind === kind).map(row);
  return html`<div class="notices">
    <div role="status">${of("success")}</div>
    <div role="alert">${of("error")}</div>
  </div>`;
}

/** @param {Notice} notice */
function add(notice) {
  notices = [...notices.filter((other) => other.text !== notice.text), notice];
  setTimeout(() => drop((other) => other === notice), SHOWN_MS[notice.kind]);
  changes.dispatchEvent(new Event("notices"));
}

/** @param {(notice: Notice) => unknown} matches */
function drop(matches) {
  notices = notices.filter((notice) => !matches(notice));
  changes.dispatchEvent(new Event("notices"));
}
