/** A state as a word with a color. */

import { html } from "../vendor/lit-html/lit-html.js";

const TONES = {
  good: ["ready", "running", "ok", "up", "load"],
  busy: ["loading", "waiting", "stopping", "draining", "evict"],
  bad: ["backoff", "failed", "damaged", "lost", "error", "fail"],
};

/** @param {string} word */
export function badge(word) {
  const [tone] = Object.entries(TONES).find(([, words]) => words.includes(word)) ?? ["plain"];
  return html`<span class="badge ${tone}">${word}</span>`;
}
