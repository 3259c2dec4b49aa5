/** A state as a word with a colour. */

import { html } from "../vendor/lit-html/lit-html.js";

const TONES = {
  ready: "good",
  running: "good",
  ok: "good",
  loading: "busy",
  waiting: "busy",
  stopping: "busy",
  backoff: "bad",
  failed: "bad",
  damaged: "bad",
  error: "bad",
};

export const badge = (word) =>
  html`<span class="badge ${TONES[word] ?? "plain"}">${word}</span>`;
