/** Fields of forms that are drawn the same everywhere. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { live } from "../vendor/lit-html/directives/live.js";

// A field without a label stands in one.

/**
 * Return a choice of values, each with its words; `choose` is called with what the user picks.
 * @param {string} label @param {[string, string][]} values @param {string} chosen @param {(value: string) => unknown} choose
 */
export const select = (label, values, chosen, choose) => html`<select aria-label=${label || nothing} @change=${(event) => choose(event.target.value)}>
  ${values.map(([value, words]) => html`<option value=${value} .selected=${live(value === chosen)}>${words}</option>`)}
</select>`;

/** Return values that are their own words. @param {string[]} names @returns {[string, string][]} */
export const nameEach = (names) => names.map((name) => [name, name]);

/** Return a switch. @param {Renderable} label @param {boolean} isOn @param {(isOn: boolean) => unknown} change */
export const check = (label, isOn, change) => html`<label class="check">
  <input type="checkbox" .checked=${isOn} @change=${(event) => change(event.target.checked)} /> ${label}
</label>`;

/** Return a field to search by. @param {string} label @param {string} hint @param {string} text @param {(text: string) => unknown} change */
export const searchField = (label, hint, text, change) =>
  html`<input type="search" dir="auto" aria-label=${label || nothing} placeholder=${hint} .value=${live(text)} @input=${(event) => change(event.target.value)} />`;
