/** How first tokens and speeds of ended requests are spread. */

import { duration, plural, rate } from "../format.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { quantile } from "./figures.js";

const BINS = 32;
const LEAST = 5; // values, below which nothing is spread

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
