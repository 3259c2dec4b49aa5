/** Figures of the requests of the last minutes: how many, how fast they begin, how fast they go on. */

import { duration, plural, rate } from "../format.js";
import { section } from "../parts/table.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

const WINDOW_S = 300;

/** Return the line of figures; `isWhole`: `rows` are all requests of the window, if there are older ones. @param {EndedRow[]} rows @param {boolean} isWhole */
export function figures(rows, isWhole) {
  const { number, minutes, perMinute, first50, first95, tokensPerS } = measure(rows, isWhole);
  if (!number) return nothing;
  const since = minutes === WINDOW_S / 60 ? `${minutes} minutes` : `${Math.max(1, Math.round(minutes * 60))} seconds`;
  const shown = html`<dl class="figures">
    ${figure("Requests per minute", rate(perMinute))}
    ${figure("Time to first token, p50", duration(first50))}
    ${figure("Time to first token, p95", duration(first95))}
    ${figure("Tokens/s of a response, p50", rate(tokensPerS))}
  </dl>`;
  return section(`Last ${since}`, shown, `${plural(number, "request")} to models`);
}

/** @param {string} label @param {string} value */
const figure = (label, value) => html`<div><dt>${label}</dt><dd>${value}</dd></div>`;

/** Tell whether rows go back to the beginning of the window. @param {EndedRow[]} rows */
export const coversWindow = (rows, now = Date.now() / 1000) => rows.length > 0 && endOf(/** @type {EndedRow} */ (rows.at(-1))) < now - WINDOW_S;

/** @param {EndedRow} row */
const endOf = (row) => Date.parse(row.started_at) / 1000 + row.seconds;

/** Return the figures of the requests that ended within the window. @param {EndedRow[]} rows @param {boolean} isWhole */
export function measure(rows, isWhole, now = Date.now() / 1000) {
  const recent = rows.filter((row) => row.model && endOf(row) > now - WINDOW_S);
  const last = rows.at(-1);
  const oldest = last ? endOf(last) : now;
  const covered = isWhole ? WINDOW_S : Math.min(WINDOW_S, Math.max(1, now - oldest));
  const firsts = recent.map((row) => row.first_token_s);
  return {
    number: recent.length,
    minutes: covered / 60,
    perMinute: (recent.length * 60) / covered,
    first50: quantile(firsts, 0.5),
    first95: quantile(firsts, 0.95),
    tokensPerS: quantile(recent.map((row) => row.tokens_per_s), 0.5),
  };
}

/** Return the smallest value that so large a part of the known values does not exceed. @param {(number | null)[]} values @param {number} part */
export function quantile(values, part) {
  const known = values.filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
  return known.length ? known[Math.max(0, Math.ceil(known.length * part) - 1)] : null;
}
