/** Models: what is here and what runs, memory, failures, downloads, and adding a model. */

import "./model-list.js";
import "./model-search.js";
import "./plan-choices.js";
import { fileSize } from "../format.js";
import { refreshFits } from "../live/fits.js";
import { library, refreshLibrary } from "../live/library.js";
import { listNodes, refreshNodes } from "../live/nodes.js";
import { forgetPull, isWithoutKey, state } from "../live/state.js";
import { readSetting } from "../live/settings.js";
import { icon } from "../parts/icon.js";
import { showError } from "../parts/notices.js";
import { section } from "../parts/table.js";
import { forBrowser, isForbidden } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";
import { pull, stopPull } from "./actions.js";
import { machine } from "./memory-overview.js";
import { describePace } from "./pull-pace.js";
import { damage, failure, isDamaged } from "./model-details.js";
import { isRunning, listModels } from "./model-list.js";
import { nodeTable } from "./node-table.js";
import { runningCard } from "./running-card.js";

const NODES_MS = 5000;

class ModelsPage extends View {
  static topics = ["models", "requests", "pulls", "samples", "library", "connection", "nodes"];

  /** @type {Map<string, HTMLElement>} */ opened = new Map(); // names of the models whose details are open → the element of their plan
  readOnly = false;
  isAdding = false;

  enter() {
    refreshLibrary().catch(showError);
    const lookAtNodes = () => state.connection.status === "live" && refreshNodes();
    lookAtNodes();
    this.listen("connection", lookAtNodes);
    this.every(NODES_MS, () => listNodes().length && lookAtNodes());
    refreshFits();
    for (const topic of ["models", "library", "connection"]) this.listen(topic, refreshFits);
    this.every(1000, () => this.update()); // times, and the pace of downloads
    readSetting("read_only").then((value) => this.change({ readOnly: value === "true" }), (error) => {
      if (!isForbidden(error)) return showError(error);
      this.change({ readOnly: true }); // the settings and changes of models need the same scope
    });
  }

  template() {
    const isEmpty = library.loaded && !library.models.length;
    const adds = !this.readOnly && (this.isAdding || isEmpty);
    return html`
      <header class="row">
        <h1 class="grow">Models</h1>
        ${this.readOnly || isEmpty
          ? nothing
          : html`<button class=${adds ? "" : "primary"} aria-expanded=${adds} @click=${() => this.change({ isAdding: !adds })}>${icon(adds ? "close" : "plus")} ${adds ? "Close" : "Add a model"}</button>`}
      </header>
      ${adds ? section("Add a model", html`<model-search ?autofocus=${this.isAdding}></model-search>`) : nothing}
      ${this.readOnly ? nothing : this.downloads()}
      <div class="halves">
        <div>${machine()} ${this.failures()} ${this.running()} ${nodeTable()}</div>
        ${this.list()}
      </div>
    `;
  }

  failures() {
    const failed = [...state.models.values()].filter((row) => row.state === "failed" && row.error);
    const damaged = library.models.filter((disk) => isDamaged(disk) && !failed.some(({ name }) => name === disk.name));
    if (!failed.length && !damaged.length) return nothing;
    return section("Needs attention", html`
      ${failed.map((row) => html`<div class="card"><h3>${row.name}</h3>${failure(row)}</div>`)}
      ${damaged.map((disk) => html`<div class="card"><h3>${disk.name}</h3>${damage(disk, this)}</div>`)}
    `);
  }

  downloads() {
    const pulls = [...state.pulls.values()].filter((row) => !row.ended_at || row.error || isStopped(row));
    return pulls.length ? section("Downloads", html`<ul class="downloads card">${pulls.map((row) => this.download(row))}</ul>`) : nothing;
  }

  /** @param {PullRow} row */
  download(row) {
    const { name, status, completed, total, error } = row;
    return html`<li>
      <strong>${name}</strong>
      ${error
        ? html`<span class="error">${forBrowser(error)}</span>
            <button @click=${() => pull(name)}>Try again</button>
            <button class="quiet" @click=${() => forgetPull(name)}>Dismiss</button>`
        : isStopped(row)
        ? html`<span class="muted">stopped${total ? ` at ${fileSize(completed)} of ${fileSize(total)}` : ""}</span>
            <button aria-label="Continue the download of ${name}" @click=${() => pull(name)}>Continue</button>
            <button class="quiet" aria-label="Dismiss the download of ${name}" @click=${() => forgetPull(name)}>Dismiss</button>`
        : html`<progress aria-label="Download of ${name}" value=${completed ?? 0} max=${total || 1}></progress>
            <span>${status}${total ? `: ${fileSize(completed)} of ${fileSize(total)}${describePace(row)}` : ""}</span>
            <button @click=${() => stopPull(name)}>Stop</button>`}
    </li>`;
  }

  running() {
    const models = listModels().filter(isRunning);
    if (!models.length) return nothing;
    const cards = html`<div class="running-models">${repeat(models, ({ name }) => name, (model) => runningCard(model, this))}</div>`;
    return section("Loaded", cards, models.length);
  }

  list() {
    if (isWithoutKey()) return html`<p class="muted">Only keys with the scope <code>infer</code> or <code>read</code> can see the models.</p>`;
    return html`<section aria-labelledby="list-title"><model-list .page=${this}></model-list></section>`;
  }

  /** Open or close the details of a model, with a plan made now. @param {string} name */
  toggle(name) {
    if (!this.opened.delete(name)) {
      const plan = document.createElement("plan-choices");
      this.opened.set(name, Object.assign(plan, { model: name, isAdmin: !this.readOnly }));
    }
    this.update();
    this.querySelector("model-list")?.update();
  }
}

/** Tell whether a download was stopped; the server keeps what it has for the next time. @param {PullRow} row */
const isStopped = ({ ended_at: end, status }) => Boolean(end) && status === "cancelled";

customElements.define("models-page", ModelsPage);
