/** The columns of ended requests: what each reads of a row, how it is written, and the order by it. */

import { clock, count, duration, rate } from "../format.js";
import { nameModel } from "./filters.js";

/** Each shows what `read` returns, by which rows are sorted, too. @type {EndedColumn[]} */
export const COLUMNS = [
  { name: "started", label: "Started", write: clock, read: (row) => Date.parse(row.started_at) / 1000 },
  { name: "took", label: "Took", write: duration, read: (row) => row.seconds },
  { name: "first", label: "Time to first token", write: duration, read: (row) => row.first_token_s },
  { name: "prompt", label: "Prompt", write: count, read: (row) => row.prompt_tokens },
  { name: "cached", label: "Cached", write: count, read: (row) => row.cached_tokens },
  { name: "promptrate", label: "Prompt tokens/s", write: rate, read: (row) => row.prompt_tokens_per_s },
  { name: "tokens", label: "Tokens", write: count, read: (row) => row.generated_tokens },
  { name: "rate", label: "Tokens/s", write: rate, read: (row) => row.tokens_per_s },
  { name: "route", label: "Route", read: (row) => row.path },
  { name: "key", label: "Key", read: (row) => row.key },
  { name: "client", label: "Client", read: (row) => row.client },
];
/** @type {EndedColumn[]} */
export const FIXED = [
  { name: "model", label: "Model", read: (row) => nameModel(row) || row.path },
  { name: "outcome", label: "Outcome", read: (row) => `${row.outcome} ${row.error ?? row.status}` },
];
export const NEWEST = "-started"; // how they come

/** Return rows in an order: the name of a column, with "-" before it from its largest value. @param {EndedRow[]} rows @param {string} order */
export function sortRows(rows, order) {
  const column = [...FIXED, ...COLUMNS].find(({ name }) => name === order.replace("-", ""));
  if (!column || order === NEWEST) return rows;
  const sign = order.startsWith("-") ? -1 : 1;
  return rows.toSorted((one, other) => {
    const [a, b] = [column.read(one), column.read(other)];
    if (isMissing(a) || isMissing(b)) return Number(isMissing(a)) - Number(isMissing(b)); // they come last
    return sign * (typeof a === "string" ? a.localeCompare(String(b)) : Number(a) - Number(b));
  });
}

/** @param {unknown} value */
export const isMissing = (value) => value === null || value === undefined;
