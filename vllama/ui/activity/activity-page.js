/** Activity: the requests that wait and run, and those that have ended. */

import { count } from "../format.js";
import { mayNotRead, state } from "../live/state.js";
import { showError } from "../parts/notices.js";
import { section } from "../parts/table.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";
import { sortRows } from "./columns.js";
import { hasMore, listEnded, readOlder } from "./ended-list.js";
import { columnChoice, endedTable } from "./ended-table.js";
import { saveCsv, saveJson } from "./export.js";
import { coversWindow, figures, histograms } from "./figures.js";
import { filterForm, filterRows, isFiltered, readFilter, writeFilter } from "./filters.js";
import { queues } from "./queues.js";
import { requestTable } from "./request-table.js";
import "./usage-today.js";

const PAGE = 50;

class ActivityPage extends View {
  static topics = ["requests", "models", "connection"];

  /** @type {Filter} */ filter = readFilter();
  /** @type {Promise<void>} */ reading = Promise.resolve();
  start = 0; // of the rows that are shown

  enter() {
    this.filter = readFilter();
    addEventListener("hashchange", () => this.setFilter(readFilter()), { signal: this.leaving.signal });
    /** @param {Event & { key?: string }} event */
    const close = (event) => {
      const menu = /** @type {HTMLDetailsElement | null} */ (this.querySelector(".columns[open]"));
      if (menu && (event.key === "Escape" || (!event.key && !menu.contains(/** @type {Node} */ (event.target))))) menu.open = false;
    };
    for (const kind of ["click", "keydown"]) addEventListener(kind, close, { signal: this.leaving.signal });
    this.every(1000, () => state.requests.size && this.update()); // the seconds of each request
    this.readAll(!isFiltered(this.filter));
  }

  template() {
    if (mayNotRead()) {
      return html`<h1>Activity</h1>
        <p class="muted">Only keys with the scope <code>read</code> can see requests.</p>
        <usage-today></usage-today>`;
    }
    const requests = [...state.requests.values()];
    const rows = listEnded();
    return html`
      <h1>Activity</h1>
      ${figures(rows, !hasMore())} ${queues()}
      ${section("Now", requests.length ? requestTable(requests) : html`<p class="muted">No requests are running. Requests of all clients appear here.</p>`, requests.length)}
      ${this.ended(rows)}
      <usage-today></usage-today>
    `;
  }

  /** @param {EndedRow[]} rows */
  ended(rows) {
    if (!rows.length && !isFiltered(this.filter)) return nothing;
    const found = sortRows(filterRows(rows, this.filter), this.filter.sort);
    const set = (/** @type {Partial<Filter>} */ part) => this.setFilter({ ...this.filter, ...part }, true);
    const update = () => this.update();
    return section("Recent requests", html`
      <div class="tools">${filterForm(rows, this.filter, set)} ${columnChoice(update)}
        <button aria-label="Export as CSV" title="Export as CSV" @click=${() => this.export(saveCsv)}>CSV</button>
        <button aria-label="Export as JSON" title="Export as JSON" @click=${() => this.export(saveJson)}>JSON</button></div>
      ${histograms(found)}
      ${found.length
        ? endedTable(found.slice(this.start, this.start + PAGE), this.filter.sort, (sort) => set({ sort }), update)
        : html`<p class="muted">No matching requests. <button @click=${() => this.setFilter({}, true)}>Show all</button></p>`}
      ${this.pages(found.length)}
    `);
  }

  /** Return the steps to newer and older rows. @param {number} number */
  pages(number) {
    const last = Math.min(this.start + PAGE, number);
    const isLast = last >= number && !hasMore();
    return html`<nav class="row pages" aria-label="Pages of requests">
      <span class="grow muted" role="status">${number ? `${count(this.start + 1)}–${count(last)} of ${count(number)}${hasMore() ? " or more" : ""}` : ""}</span>
      <button ?disabled=${this.start === 0} @click=${() => this.turn(-PAGE)}>Newer</button>
      <button ?disabled=${isLast} @click=${() => this.turn(PAGE)}>Older</button>
    </nav>`;
  }

  /** @param {number} step */
  async turn(step) {
    const start = Math.max(0, this.start + step);
    const count = () => filterRows(listEnded(), this.filter).length;
    try {
      while (step > 0 && count() < start + PAGE && hasMore()) await readOlder();
    } catch (error) {
      showError(error);
    }
    if (start < Math.max(1, count())) this.start = start;
    this.update();
  }

  /** Show what a filter leaves; `written`: it is to stand in the address. @param {Partial<Filter>} filter */
  setFilter(filter, written = false) {
    if (written) writeFilter(filter);
    this.change({ filter: readFilter(), start: 0 });
    if (isFiltered(this.filter)) this.readAll();
  }

  /** Save all requests that the filter leaves, in their order. @param {(rows: EndedRow[]) => void} save */
  async export(save) {
    await this.readAll();
    save(sortRows(filterRows(listEnded(), this.filter), this.filter.sort));
  }

  /** Read all that the server keeps, which a filter is about; `few`: what the figures are about. */
  readAll(few = false) {
    this.reading = this.reading.then(() => this.read(few));
    return this.reading;
  }

  /** @param {boolean} few */
  async read(few) {
    try {
      while (hasMore() && this.isConnected && !(few && coversWindow(listEnded()))) await readOlder();
    } catch {
      // the frame of the page says that the connection is lost
    }
    this.update();
  }
}

customElements.define("activity-page", ActivityPage);
