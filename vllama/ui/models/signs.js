/** What a model can do, and whether it fits, as small signs. */

import { contextLength, count } from "../format.js";
import { icon } from "../parts/icon.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

const SHOWN = ["vision", "tools", "thinking", "embedding"];

/** @type {Record<string, [string, string]>} */
const MARKS = {
  fits: ["good", "Fits now"],
  runs: ["good", "Fits"],
  slow: ["busy", "Slow here"],
  partly: ["busy", "Partly in RAM"],
  later: ["busy", "Fits later"],
  "too large": ["bad", "Too large"],
  refused: ["bad", "Not served here"],
};

/** The kinds of fit, the best first. */
export const FITS = Object.keys(MARKS);

/** Return whether a model fits as words, such as "Fits now", "" if that is not known. @param {string} [fit] */
export const nameFit = (fit = "") => MARKS[fit]?.[1] ?? "";

/** Return the mark of a model, nothing if it is not known how it fits. @param {string} [fit] @param {string} [summary] */
export const fitMark = (fit = "", summary = "") =>
  MARKS[fit] ? html`<span class="mark ${MARKS[fit][0]}" title=${summary}>${MARKS[fit][1]}</span>` : nothing;

/** Return an icon for each thing that a model can do. @param {readonly string[]} [capabilities] */
export const signs = (capabilities = []) =>
  SHOWN.filter((name) => capabilities.includes(name)).map(
    (name) => html`<span class="sign" role="img" aria-label=${name} title=${name}>${icon(name)}</span>`,
  );

/** @param {number | null} [tokens] */
export const contextSign = (tokens) =>
  tokens ? html`<span title="context of ${count(tokens)} tokens">${contextLength(tokens)} context</span>` : nothing;
