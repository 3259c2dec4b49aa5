/** Figures of ended requests: how many, how fast they begin and go on, in the last minutes, and how that is spread. */

import { duration, plural, rate } from "../format.js";
import { section } from "../parts/table.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

const WINDOW_S = 300;
const BINS = 32; // of a histogram
const LEAST = 5; // values, below which nothing is spread

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

/** Return the histograms of `rows`. @param {EndedRow[]} rows */
export const histograms = (rows) => html`<div class="histograms">
  ${histogram("Time to first token", rows.map((row) => row.first_token_s), duration)}
  ${histogram("Tokens/s of a response", rows.map((row) => row.tokens_per_s), rate)}
</div>`;

/** @param {string} title @param {(number | null)[]} values @param {Format} write */
function histogram(title, values, write) {
  const known = values.filter((value) => value !== null).filter((value) => value > 0).sort((a, b) => a - b);
  if (known.length < LEAST) return nothing;
  const [least, most] = [known[0], /** @type {number} */ (known.at(-1))];
  const bins = Array(BINS).fill(0);
  const width = Math.log(most / least) || 1; // a second and a minute are as far apart as a minute and an hour
  for (const value of known) bins[Math.min(BINS - 1, Math.floor((BINS * Math.log(value / least)) / width))] += 1;
  const highest = Math.max(...bins);
  const bars = bins.map((number, index) => `M${index + 0.05} 1V${1 - number / highest}h0.9V1Z`).join("");
  const [p50, p95] = [0.5, 0.95].map((part) => write(quantile(known, part) ?? 0));
  return html`<figure class="card">
    <figcaption><strong>${title}</strong> <span class="muted">${plural(known.length, "request")}, p50 ${p50}, p95 ${p95}</span></figcaption>
    <svg viewBox="0 0 ${BINS} 1" preserveAspectRatio="none" role="img" aria-label="${title}, from ${write(least)} to ${write(most)}"><path d=${bars} /></svg>
    <small class="row"><span class="grow">${write(least)}</span><span>${write(most)}</span></small>
  </figure>`;
}
