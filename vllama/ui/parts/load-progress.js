/** How far the load of a model is: a bar, the bytes of its files that were read, and the time. */

import { duration, fileSize, secondsUntil } from "../format.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

/** Return it for `load` of a model's row; the bar only moves to and fro where nothing tells the bytes. @param {string} name @param {LoadProgress} load */
export function loadProgress(name, { started_at: start, completed, total }) {
  const known = Boolean(completed && total);
  const read = known ? `${fileSize(completed)} of ${fileSize(total)}, ` : "";
  return html`<progress aria-label="Progress of loading ${name}" value=${known ? completed : nothing} max=${total || 1}></progress> <small>${read}${duration(Math.max(0, -secondsUntil(start)))}</small>`;
}
