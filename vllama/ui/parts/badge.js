/** A state as a word with a color. */

import { html } from "../vendor/lit-html/lit-html.js";

/** @type {Record<string, string>} */
const TONES = {
  ready: "good",
  running: "good",
  ok: "good",
  up: "good",
  loading: "busy",
  waiting: "busy",
  stopping: "busy",
  draining: "busy",
  backoff: "bad",
  failed: "bad",
  damaged: "bad",
  lost: "bad",
  error: "bad",
};

/** @param {string} word */
export const badge = (word) =>
  html`<span class="badge ${TONES[word] ?? "plain"}">${word}</span>`;
