/** Keyboard shortcuts of all pages, and the sheet that lists them. */

import { showDialog } from "./parts/dialogs.js";
import { html } from "./vendor/lit-html/lit-html.js";

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
/** @type {[string, string][]} */
const SHEET = [
  [isMac ? "⌘ K" : "Ctrl+K", "Search conversations"],
  [isMac ? "⌘ ⇧ O" : "Ctrl+Shift+O", "New conversation"],
  ["Esc", "Stop the response"],
  ["Enter", "Send the message"],
  [isMac ? "⇧ Enter" : "Shift+Enter", "Add a line"],
  ["↑", "Edit the last message (in an empty message field)"],
  ["F2", "Rename a conversation (in the list)"],
  ["?", "Show this list"],
];

/** Tell whether keys are text there. @param {EventTarget | null} target */
export const isField = (target) => target instanceof Element && target.closest("input, textarea, select") !== null;

export const showShortcuts = () =>
  showDialog("Keyboard shortcuts", html`<table class="plain">${SHEET.map(([keys, words]) => html`<tr><th scope="row"><kbd>${keys}</kbd></th><td>${words}</td></tr>`)}</table>`);

/** Return which shortcut a key is: "search", "begin", "help", or none. @param {KeyboardEvent} event */
export function readShortcut(event) {
  if (event.isComposing || event.altKey || document.querySelector("dialog[open]")) return undefined;
  const key = event.key.toLowerCase();
  if (isMac ? event.metaKey : event.ctrlKey) return { k: "search", O: "begin" }[event.shiftKey ? key.toUpperCase() : key];
  return key === "?" && !isField(event.target) ? "help" : undefined;
}
