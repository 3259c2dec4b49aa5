/** Models: what is here and what runs, memory, failures, downloads, and adding a model. */

import "./plan-choices.js";
import "./pull-form.js";
import { fileSize } from "../format.js";
import { library, listLive, refreshLibrary } from "../live/library.js";
import { listNodes, refreshNodes } from "../live/nodes.js";
import { forgetPull, isWithoutKey, listSharing, mayNotRead, state } from "../live/state.js";
import { readSetting } from "../live/settings.js";
import { showError } from "../parts/notices.js";
import { forBrowser, isForbidden } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";
import { pull, stopPull } from "./actions.js";
import { machine } from "./memory-overview.js";
import { describePace } from "./pull-pace.js";
import { damage, failure, isDamaged } from "./model-details.js";
import { modelList } from "./model-list.js";
import { nodeTable } from "./node-table.js";
import { runningCard } from "./running-card.js";

const NODES_MS = 5000;

class ModelsPage extends View {
  static topics = ["models", "requests", "pulls", "samples", "library", "connection", "nodes"];

  /** @type {Map<string, HTMLElement>} */ opened = new Map(); // names of the models whose details are open → the element of their plan
  filter = "";
  readOnly = false;

  enter() {
    refreshLibrary().catch(showError);
    if (state.connection.status === "live") refreshNodes();
    this.every(NODES_MS, () => {
      if (listNodes().length && state.connection.status === "live") refreshNodes();
    });
    this.listen("connection", () => state.connection.status === "live" && refreshNodes());
    this.every(1000, () => this.update()); // times, and the pace of downloads
    readSetting("read_only").then((value) => {
      this.readOnly = value === "true";
      this.update();
    }, (error) => {
      if (!isForbidden(error)) return showError(error);
      this.readOnly = true; // the settings and changes of models need the same scope
      this.update();
    });
  }

  template() {
    return html`
      <h1>Models</h1>
      ${machine()} ${this.failures()} ${this.running()} ${nodeTable()}
      ${this.readOnly
        ? nothing
        : html`<section aria-labelledby="add-title">
            <h2 id="add-title">Add a model</h2>
            <pull-form></pull-form>
            ${this.downloads()}
          </section>`}
      ${this.list()}
    `;
  }

  failures() {
    const failed = [...state.models.values()].filter((row) => row.state === "failed" && row.error);
    const damaged = library.models.filter((disk) => isDamaged(disk) && !failed.some(({ name }) => name === disk.name));
    if (!failed.length && !damaged.length) return nothing;
    return html`<section aria-labelledby="failed-title">
      <h2 id="failed-title">Needs attention</h2>
      ${failed.map((row) => html`<div class="card"><h3>${row.name}</h3>${failure(row)}</div>`)}
      ${damaged.map((disk) => html`<div class="card"><h3>${disk.name}</h3>${damage(disk, this)}</div>`)}
    </section>`;
  }

  downloads() {
    const pulls = [...state.pulls.values()].filter((row) => !row.ended_at || row.error || isStopped(row));
    if (!pulls.length) return nothing;
    return html`<h3>Downloads</h3>
      <ul class="downloads">${pulls.map((row) => this.download(row))}</ul>`;
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
    const models = this.listModels().filter(isRunning);
    if (!models.length) return nothing;
    return html`<section aria-labelledby="running-title">
      <h2 id="running-title">Loaded <span class="muted">${models.length}</span></h2>
      <div class="running-models">${repeat(models, ({ name }) => name, (model) => runningCard(model, this))}</div>
    </section>`;
  }

  list() {
    const models = this.listModels().filter((model) => !isRunning(model));
    const shown = models.filter(({ name }) => name.toLowerCase().includes(this.filter));
    if (isWithoutKey()) return html`<p class="muted">Only keys with the scope <code>infer</code> or <code>read</code> can see the models.</p>`;
    return html`<section aria-labelledby="list-title">
      <div class="row">
        <h2 id="list-title" class="grow">${this.listTitle()} <span class="muted">${models.length}</span></h2>
        <input
          type="search"
          aria-label="Filter models by name"
          placeholder="Filter"
          @input=${(event) => this.setFilter(event.target.value)}
        />
      </div>
      ${shown.length ? modelList(shown, this) : this.emptyText(models)}
    </section>`;
  }

  listTitle() {
    if (listNodes().length) return "In the cluster";
    return mayNotRead() ? "On this server" : "Not loaded";
  }

  /** @param {Model[]} models */
  emptyText(models) {
    if (models.length) return html`<p class="muted">No model has “${this.filter}” in its name.</p>`;
    if (this.listModels().length) return html`<p class="muted">All models are loaded.</p>`;
    return library.loaded
      ? html`<p class="muted">No models yet. Enter a model name above to see its plan.</p>`
      : html`<p class="muted">Loading …</p>`;
  }

  /** Return the models that are here: those that run or have failed first, then by name. */
  listModels() {
    /** @type {Map<string, Model>} */
    const models = new Map(library.models.map((disk) => [disk.name, { name: disk.name, disk }]));
    for (const live of listLive()) {
      models.set(live.name, { ...models.get(live.name), name: live.name, live });
      for (const name of live.other_names) {
        if (models.has(name)) models.set(name, { ...models.get(name), name, live });
      }
    }
    /** @param {Model} model */
    const rank = ({ live }) => (live ? 0 : 1);
    return [...models.values()].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  }

  /** @param {string} text */
  setFilter(text) {
    this.filter = text.trim().toLowerCase();
    this.update();
  }

  /** Open or close the details of a model, with a plan made now. @param {string} name */
  toggle(name) {
    if (!this.opened.delete(name)) {
      const plan = document.createElement("plan-choices");
      this.opened.set(name, Object.assign(plan, { model: name, isHere: true }));
    }
    this.update();
  }
}

/** Tell whether a download was stopped; the server keeps what it has for the next time. @param {PullRow} row */
const isStopped = ({ ended_at: end, status }) => Boolean(end) && status === "cancelled";

/** Tell whether a model has a card: each engine has one, under the first of its models' names here. @param {Model} model */
const isRunning = ({ name, live }) =>
  live && live.state !== "failed" && name === listSharing(live).filter((each) => isListed(each, live)).toSorted()[0];
/** @param {string} name @param {ModelRow} live */
const isListed = (name, live) => name === live.name || library.models.some((disk) => disk.name === name);

customElements.define("models-page", ModelsPage);
