/** A conversation without messages: a question above the composer, and suggestions below it. */

import { library } from "../live/library.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

const SUGGESTIONS = [
  ["Explain", "Explain to someone who has never programmed how a language model chooses its next word."],
  ["Write code", "Write a Python function that finds the duplicates in a list, with tests."],
  ["Proofread a text", "Proofread this text, and list your changes:\n\n"],
];

/** Return what stands above the composer. @param {string[]} models */
export function greeting(models) {
  const [model] = models;
  if (model) return html`<h2 class="greeting">What can ${models.join(" and ")} help with?</h2>`;
  if (!library.loaded) return html`<h2 class="greeting">Chat</h2>`;
  return html`<h2 class="greeting">No models yet</h2>
    <p class="muted"><a href="#/models">Add one on the Models page</a>, then come back to chat with it.</p>`;
}

/** Return what stands below the composer; `choose` is given the text of a suggestion. @param {string[]} models @param {(text: string) => void} choose */
export function suggestions(models, choose) {
  if (!models[0]) return nothing;
  return html`<ul class="suggestions" aria-label="Suggestions">
    ${SUGGESTIONS.map(
      ([title, text]) => html`<li>
        <button type="button" @click=${() => choose(text)}><strong>${title}</strong> <span>${text}</span></button>
      </li>`,
    )}
  </ul>`;
}
