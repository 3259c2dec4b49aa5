/** Waiting and running requests as a table, with a button to end each. */

import { count, duration, rate, secondsUntil } from "../format.js";
import { endRequest } from "../models/actions.js";
import { badge } from "../parts/badge.js";
import { table } from "../parts/table.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

/** Return who has sent a request: the address, and what may be shown of the key. @param {RequestRow} row */
export const describeClient = ({ client, key }) => (key ? `${client} (key ${key})` : client);

/** Return the table of the given rows of the event stream. @param {RequestRow[]} requests */
export function requestTable(requests) {
  /** @param {RequestRow} row */
  const order = (row) => (row.state === "running" ? 0 : (row.queue_place ?? 1));
  const sorted = [...requests].sort((a, b) => order(a) - order(b) || a.started_at.localeCompare(b.started_at));
  return table("cards running", COLUMNS, sorted, { key: (row) => row.id });
}

/** Return the tokens per second since the first token; undefined before there are some. @param {RequestRow} row */
function measureRate({ started_at: started, first_token_s: first, generated_tokens: tokens }) {
  if (!tokens || first === null) return undefined;
  const seconds = -secondsUntil(started) - first;
  return seconds > 1 ? (tokens - 1) / seconds : undefined;
}

/** @type {Column<RequestRow>[]} */
const COLUMNS = [
  ["Model", (row) => row.model],
  ["State", describeState],
  ["Since", (row) => duration(-secondsUntil(row.started_at)), "number"],
  ["Prompt", (row) => (row.prompt_tokens ? count(row.prompt_tokens) : "–"), "number"],
  ["Tokens", (row) => count(row.generated_tokens), "number"],
  ["Tokens/s", (row) => rate(measureRate(row)), "number"],
  ["Time to first token", (row) => duration(row.first_token_s), "number"],
  ["Client", (row) => html`<small>${describeClient(row)} · ${row.path}</small>`],
  ["Actions", stopButton, "actions"],
];

/** @param {RequestRow} row */
function describeState({ state, queue_place: place, resumed }) {
  return html`${badge(state)} ${place ? html`<small>place ${place}</small>` : nothing}
    ${resumed ? html`<small title="Resumed after its engine crashed">resumed</small>` : nothing}`;
}

/** @param {RequestRow} row */
function stopButton(row) {
  return html`<button aria-label="Stop the request of ${describeClient(row)} to ${row.model}" @click=${() => endRequest(row.id)}>Stop</button>`;
}
