/** The tokens per second that models generate now, from the rows of their requests, which come twice a second. */

import { changes, state } from "./state.js";

const WINDOW_MS = 2500;

/** @type {Map<string, number>} */
const known = new Map(); // id of a request → its tokens so far
/** @type {{ time: number, model: string, tokens: number }[]} */
let counted = []; // {time, model, tokens} of the window

changes.addEventListener("requests", () => {
  const time = Date.now();
  for (const row of state.requests.values()) note(row, time);
  for (const id of known.keys()) {
    if (state.requests.has(id)) continue;
    const ended = state.ended.find((row) => row.id === id);
    if (ended) note(ended, time);
    known.delete(id);
  }
  counted = counted.filter((one) => one.time > time - WINDOW_MS);
});

/** @param {RequestRow | EndedRow} row @param {number} time */
function note({ id, model, generated_tokens: tokens, started_at: start }, time) {
  // what was generated before the page was opened does not count
  const before = known.get(id) ?? (time - Date.parse(start) < WINDOW_MS ? 0 : tokens);
  if (tokens > before) counted.push({ time, model, tokens: tokens - before });
  known.set(id, tokens);
}

/** Return the tokens per second of all answers of models, by their names. @param {string[]} names */
export function rateNow(names) {
  const since = Date.now() - WINDOW_MS;
  const tokens = counted
    .filter(({ time, model }) => time > since && names.includes(model))
    .reduce((sum, one) => sum + one.tokens, 0);
  return (tokens * 1000) / WINDOW_MS;
}

/** Return the tokens per second of the last answer, undefined if none is known. @param {string[]} names */
export const lastRate = (names) =>
  state.ended.find((row) => names.includes(row.model) && row.tokens_per_s)?.tokens_per_s;
