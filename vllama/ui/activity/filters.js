/** Which of the requests are shown, by model, key, outcome and words, and in which order; it stands in the address. */

import { check, nameEach, searchField, select } from "../parts/fields.js";
import { linkTo, readRoute } from "../route.js";
import { html } from "../vendor/lit-html/lit-html.js";

/** @type {(keyof Filter)[]} */
const NAMES = ["text", "model", "key", "errors", "sort"];
const NO_KEY = "no key";

/** Return the model of a request, also of one that is not there. @param {{ model: string, requested?: string }} row */
export const nameModel = (row) => row.model || row.requested || "";

/** Return what the address filters by; "" where it does not. @returns {Filter} */
export function readFilter() {
  const { query } = readRoute();
  return /** @type {any} */ (Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""])));
}

/** Put a filter into the address, without a step in the history. @param {Partial<Filter>} filter */
export function writeFilter(filter) {
  const query = Object.fromEntries(NAMES.map((name) => [name, filter[name] || undefined]));
  history.replaceState(null, "", linkTo("activity", undefined, query));
}

/** Tell whether a filter is about more than the newest rows. @param {Filter} filter */
export const isFiltered = (filter) => NAMES.some((name) => filter[name]);

/** Return the rows that a filter leaves. @param {EndedRow[]} rows @param {Filter} filter */
export function filterRows(rows, { text, model, key, errors }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    if (errors && row.outcome !== "error") return false;
    if (model && nameModel(row) !== model) return false;
    if (key && (row.key ?? NO_KEY) !== key) return false;
    if (!words.length) return true;
    const found = [row.id, nameModel(row), row.path, row.client, row.key, row.outcome, row.status, row.error]
      .join(" ").toLowerCase();
    return words.every((word) => found.includes(word));
  });
}

/**
 * Return the form; `change` is called with what has changed: more may have since this was drawn.
 * @param {EndedRow[]} rows @param {Filter} filter @param {(changed: Partial<Filter>) => void} change
 */
export function filterForm(rows, filter, change) {
  /** @param {keyof Filter} name @param {string} value */
  const set = (name, value) => change({ [name]: value });
  /** @param {string[]} values */
  const list = (values) => [...new Set(values)].filter(Boolean).sort();
  return html`<form class="filters row" role="search" aria-label="Filter requests" @submit=${(event) => event.preventDefault()}>
    ${searchField("Text", "Text, error, client, ID", filter.text, (text) => set("text", text))}
    ${choice("Model", "All models", list(rows.map(nameModel)), filter.model, (value) => set("model", value))}
    ${choice("Key", "All keys", list(rows.map((row) => row.key ?? NO_KEY)), filter.key, (value) => set("key", value))}
    ${check("Errors only", Boolean(filter.errors), (isOn) => set("errors", isOn ? "1" : ""))}
  </form>`;
}

/**
 * @param {string} label @param {string} all @param {string[]} names @param {string} chosen
 * @param {(value: string) => void} change
 */
function choice(label, all, names, chosen, change) {
  const listed = chosen && !names.includes(chosen) ? [chosen, ...names] : names;
  return select(label, [["", all], ...nameEach(listed)], chosen, change);
}
