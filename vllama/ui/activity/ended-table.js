/** Requests that have ended, one line each; a line opens to all that is known of it. */

import { clock, count, rate } from "../format.js";
import { badge } from "../parts/badge.js";
import { check } from "../parts/fields.js";
import { keep } from "../parts/keep.js";
import { forBrowser } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { isGone, showCapture } from "./capture.js";
import { COLUMNS, FIXED, isMissing, NEWEST } from "./columns.js";
import { identify } from "./ended-list.js";
import { nameModel } from "./filters.js";

const STORED = "activity-columns";
const FEW = ["started", "took", "tokens", "rate", "first", "client"];
/** @type {string[]} */
let chosen = JSON.parse(localStorage.getItem(STORED) ?? "null") ?? FEW;
const opened = new Set();

/**
 * Return the table of `rows`, which are in the order `order`; `update` draws it again.
 * @param {EndedRow[]} rows @param {string} order @param {(order: string) => void} sort @param {() => void} update
 */
export function endedTable(rows, order, sort, update) {
  const columns = COLUMNS.filter(({ name }) => chosen.includes(name));
  const captured = rows.some((row) => row.capture && !isGone(row.capture));
  const width = columns.length + 2 + Number(captured);
  return html`<table class="ended">
    <thead>
      <tr>
        ${[...FIXED, ...columns].map((column) => heading(column, order || NEWEST, sort))}
        ${captured ? html`<th scope="col"><span class="hidden">Capture</span></th>` : nothing}
      </tr>
    </thead>
    <tbody>
      ${repeat(rows, identify, (row) => endedRow(row, { columns, captured, width, update }))}
    </tbody>
  </table>`;
}

/** Return the heading of a column, which sorts by it: numbers from the largest, texts from the first. @param {EndedColumn} column @param {string} order @param {(order: string) => void} sort */
function heading({ name, label, write }, order, sort) {
  const isDown = order === `-${name}`;
  const direction = isDown ? "descending" : order === name ? "ascending" : nothing;
  const next = isDown || (order !== name && !write) ? name : `-${name}`;
  return html`<th scope="col" class=${write ? "number" : ""} aria-sort=${direction}>
    <button class="quiet" @click=${() => sort(next === NEWEST ? "" : next)}>${label}</button>
  </th>`;
}

/** Return the choice of columns. @param {() => void} update */
export function columnChoice(update) {
  /** @param {string} name @param {boolean} isShown */
  const set = (name, isShown) => {
    chosen = COLUMNS.map((column) => column.name).filter((one) => (one === name ? isShown : chosen.includes(one)));
    keep(localStorage, STORED, JSON.stringify(chosen));
    update();
  };
  return html`<details class="columns">
    <summary class="button">Columns</summary>
    <fieldset class="card">
      <legend class="hidden">Columns</legend>
      ${COLUMNS.map(({ name, label }) => check(label, chosen.includes(name), (isShown) => set(name, isShown)))}
    </fieldset>
  </details>`;
}

/** @param {EndedRow} row @param {{ columns: EndedColumn[], captured: boolean, width: number, update: () => void }} table */
function endedRow(row, { columns, captured, width, update }) {
  const id = identify(row);
  const isOpen = opened.has(id);
  const toggle = () => {
    if (!opened.delete(id)) opened.add(id);
    update();
  };
  const why = row.error ? forBrowser(row.error) : row.outcome === "ok" ? (row.resumed ? "resumed" : "") : row.status ? `status ${row.status}` : "";
  return html`<tr class=${isOpen ? "open" : ""}>
      <th scope="row">
        <button class="disclosure" aria-expanded=${isOpen} @click=${toggle}>${nameModel(row) || row.path}</button>
      </th>
      <td class="outcome">${badge(row.outcome)} <span class=${row.error ? "error" : "muted"}>${why}</span></td>
      ${columns.map(({ name, label, write, read }) => {
        const value = read(row);
        return html`<td data-label=${label} class="${name} ${write ? "number" : ""}">${isMissing(value) ? "–" : write ? write(/** @type {number} */ (value)) : value}</td>`;
      })}
      ${captured ? html`<td class="actions">${captureButton(row, update)}</td>` : nothing}
    </tr>
    ${isOpen ? html`<tr class="details"><td colspan=${width}>${facts(row)}</td></tr>` : nothing}`;
}

/** @param {EndedRow} row @param {() => void} update */
function captureButton(row, update) {
  if (!row.capture || isGone(row.capture)) return nothing;
  const { capture } = row;
  const name = `Open the capture of ${nameModel(row) || row.path}, ${clock(row.started_at)}`;
  return html`<button aria-label=${name} @click=${() => showCapture(capture, update)}>Open</button>`;
}

/** Return all that is known of a request. @param {EndedRow} row */
function facts(row) {
  const known = [
    ["Route", `${row.method} ${row.path}`],
    ["Started", new Date(row.started_at).toLocaleString("en-GB")],
    ["Status", row.status || "none"],
    ["Client", row.client],
    ["Key", row.key ?? "none"],
    ["Tokens", `${count(row.prompt_tokens)} prompt (${count(row.cached_tokens)} cached), ${count(row.generated_tokens)} generated`],
    ["Tokens/s", `${rate(row.prompt_tokens_per_s)} prompt, ${rate(row.tokens_per_s)} generated`],
    ["ID", row.id],
  ];
  return html`${row.error ? html`<p class="error">${forBrowser(row.error)}</p>` : nothing}
    <dl class="facts">${known.map(([label, value]) => html`<div><dt>${label}</dt><dd>${value}</dd></div>`)}</dl>`;
}
