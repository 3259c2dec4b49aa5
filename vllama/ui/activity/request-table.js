/** Waiting and running requests as a table, with a button to end each. */

import { count, duration, rate, secondsUntil } from "../format.js";
import { endRequest } from "../models/actions.js";
import { badge } from "../parts/badge.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";

/** Return who has sent a request: the address, and what may be shown of the key. @param {RequestRow} row */
export const describeClient = ({ client, key }) => (key ? `${client} (key ${key})` : client);

/** Return the table of the given rows of the event stream. @param {RequestRow[]} requests */
export function requestTable(requests) {
  /** @param {RequestRow} row */
  const order = (row) => (row.state === "running" ? 0 : (row.queue_place ?? 1));
  const sorted = [...requests].sort((a, b) => order(a) - order(b) || a.started_at.localeCompare(b.started_at));
  return html`<table class="cards running">
    <thead>
      <tr>
        <th scope="col">Model</th>
        <th scope="col">State</th>
        <th scope="col" class="number">Since</th>
        <th scope="col" class="number">Prompt</th>
        <th scope="col" class="number">Tokens</th>
        <th scope="col" class="number">Tokens/s</th>
        <th scope="col" class="number">Time to first token</th>
        <th scope="col">Client</th>
        <th scope="col"><span class="hidden">Actions</span></th>
      </tr>
    </thead>
    <tbody>
      ${repeat(sorted, (row) => row.id, requestRow)}
    </tbody>
  </table>`;
}

/** Return the tokens per second since the first token; undefined before there are some. @param {RequestRow} row */
function measureRate({ started_at: started, first_token_s: first, generated_tokens: tokens }) {
  if (!tokens || first === null) return undefined;
  const seconds = -secondsUntil(started) - first;
  return seconds > 1 ? (tokens - 1) / seconds : undefined;
}

/** @param {RequestRow} row */
function requestRow(row) {
  return html`<tr>
    <th scope="row">${row.model}</th>
    <td data-label="State">
      ${badge(row.state)}
      ${row.queue_place ? html`<small>place ${row.queue_place}</small>` : nothing}
      ${row.resumed ? html`<small title="Resumed after its engine crashed">resumed</small>` : nothing}
    </td>
    <td data-label="Since" class="number">${duration(-secondsUntil(row.started_at))}</td>
    <td data-label="Prompt" class="number">${row.prompt_tokens ? count(row.prompt_tokens) : "–"}</td>
    <td data-label="Tokens" class="number">${count(row.generated_tokens)}</td>
    <td data-label="Tokens/s" class="number">${rate(measureRate(row))}</td>
    <td data-label="First token" class="number">${duration(row.first_token_s)}</td>
    <td data-label="Client"><small>${describeClient(row)} · ${row.path}</small></td>
    <td class="actions">
      <button aria-label="Stop the request of ${describeClient(row)} to ${row.model}" @click=${() => endRequest(row.id)}>
        Stop
      </button>
    </td>
  </tr>`;
}
