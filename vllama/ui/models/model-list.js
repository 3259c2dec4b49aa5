/** The models that are not loaded: a row each, in groups or sorted, and below it the details once its name is pressed. */

import { count, fileSize } from "../format.js";
import { findFit } from "../live/fits.js";
import { library, listLive } from "../live/library.js";
import { listHolders, listNodes } from "../live/nodes.js";
import { listSharing, mayNotRead } from "../live/state.js";
import { badge } from "../parts/badge.js";
import { searchField, select } from "../parts/fields.js";
import { keep } from "../parts/keep.js";
import { linkTo } from "../route.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";
import * as actions from "./actions.js";
import { details, disclosure, isDamaged } from "./model-details.js";
import { contextSign, FITS, fitMark, nameFit, signs } from "./signs.js";

const STORED = "models-sort";
const STEP = 200; // rows that one click shows

/** @param {Model} model */
const family = ({ disk }) => disk?.details?.family || "other";
/** @param {Model} model */
const fit = ({ name }) => findFit(name)?.fit ?? "unknown";
/** @param {string} kind */
const rank = (kind) => (FITS.includes(kind) ? FITS.indexOf(kind) : FITS.length);
/** @param {Model} model */
const changed = ({ disk }) => Date.parse(disk?.modified_at ?? "") || 0;

/** @type {Record<string, Order>} */
const ORDERS = {
  family: { label: "Family", compare: (a, b) => family(a).localeCompare(family(b)), group: family },
  name: { label: "Name", compare: () => 0 },
  size: { label: "Size", compare: (a, b) => (b.disk?.size ?? 0) - (a.disk?.size ?? 0) },
  date: { label: "Newest", compare: (a, b) => changed(b) - changed(a) },
  fit: { label: "Fit", compare: (a, b) => rank(fit(a)) - rank(fit(b)), group: (model) => nameFit(fit(model)) || "Unknown" },
};

class ModelList extends View {
  static topics = ["models", "library", "nodes", "connection", "fits"];

  /** @type {ModelsView} */ page; // keeps which models are open; to be set before it is shown
  filter = "";
  most = STEP;
  sort = localStorage.getItem(STORED) ?? "";

  enter() {
    this.listen("requests", () => this.page.opened.size && this.update()); // their details list them
  }

  template() {
    const models = listModels().filter((model) => !isRunning(model));
    const order = ORDERS[this.sort] ?? ORDERS.family;
    const shown = models.filter(({ name }) => name.toLowerCase().includes(this.filter.trim().toLowerCase())).sort(order.compare);
    return html`<div class="row">
        <h2 id="list-title" class="grow">${listTitle()} <span class="muted">${models.length}</span></h2>
        <label class="check">Sort by
          ${select("", Object.entries(ORDERS).map(([name, { label }]) => [name, label]), ORDERS[this.sort] ? this.sort : "family", (sort) => this.setSort(sort))}
        </label>
        ${searchField("Filter models by name", "Filter", this.filter, (filter) => this.change({ filter }))}
      </div>
      ${shown.length ? this.table(shown.slice(0, this.most), order) : this.emptyText(models)}
      ${shown.length > this.most ? html`<button @click=${() => this.change({ most: this.most + STEP })}>Show more of ${count(shown.length)}</button>` : nothing}`;
  }

  /** @param {Model[]} models @param {Order} order */
  table(models, { group = () => "" }) {
    return html`<table class="cards models">
      <colgroup><col /><col /><col /><col /></colgroup>
      <thead class="hidden">
        <tr>
          <th scope="col">Model</th>
          <th scope="col">Capabilities</th>
          <th scope="col">State</th>
          <th scope="col">Actions</th>
        </tr>
      </thead>
      ${repeat(Object.entries(Object.groupBy(models, group)), ([title]) => title, ([title, members = []]) => html`<tbody>
        ${title ? html`<tr class="group"><th colspan="4" scope="rowgroup">${title}</th></tr>` : nothing}
        ${repeat(members, ({ name }) => name, (model) => this.rows(model))}
      </tbody>`)}
    </table>`;
  }

  /** @param {Model} model */
  rows(model) {
    const { name, disk } = model;
    const isOpen = this.page.opened.has(name);
    return html`
      <tr class=${isOpen ? "open" : ""} data-model=${name}>
        <th scope="row">${disclosure(name, this.page)} <small>${describeFiles(disk, this.sort === "date")}</small></th>
        <td class="signs">${signs(disk?.capabilities)} ${contextSign(disk?.details?.context_length)}</td>
        <td>${describeState(model)}</td>
        <td class="actions">${mainActions(model)}</td>
      </tr>
      ${isOpen
        ? html`<tr class="details" id="details-${name}"><td colspan="4">${details(model, this.page)}</td></tr>`
        : nothing}
    `;
  }

  /** @param {Model[]} models */
  emptyText(models) {
    if (models.length) return html`<p class="muted">No model has “${this.filter}” in its name.</p>`;
    if (listModels().length) return html`<p class="muted">All models are loaded.</p>`;
    return html`<p class="muted">${library.loaded ? "No models yet. Add one above." : "Loading …"}</p>`;
  }

  /** @param {string} sort */
  setSort(sort) {
    keep(localStorage, STORED, sort);
    this.change({ sort });
  }
}

function listTitle() {
  if (listNodes().length) return "In the cluster";
  return mayNotRead() ? "On this server" : "Not loaded";
}

/** Return the models that are here: those that run or have failed first, then by name. */
export function listModels() {
  /** @type {Map<string, Model>} */
  const models = new Map(library.models.map((disk) => [disk.name, { name: disk.name, disk }]));
  for (const live of listLive()) {
    models.set(live.name, { ...models.get(live.name), name: live.name, live });
    for (const name of live.other_names) {
      if (models.has(name)) models.set(name, { ...models.get(name), name, live });
    }
  }
  return [...models.values()].sort((a, b) => Number(!a.live) - Number(!b.live) || (a.name < b.name ? -1 : 1));
}

/** Tell whether a model has a card: each engine has one, under the first of its models' names here. @param {Model} model */
export const isRunning = ({ name, live }) =>
  live && live.state !== "failed" && name === listSharing(live).filter((each) => isListed(each, live)).toSorted()[0];
/** @param {string} name @param {ModelRow} live */
const isListed = (name, live) => name === live.name || library.models.some((disk) => disk.name === name);

/** Return the state of a model, of one that is only there whether it fits. @param {Model} model */
function describeState({ name, disk, live }) {
  if (live) {
    const others = listSharing(live).filter((other) => other !== name);
    return html`${badge(live.state)} ${others.length ? html`<small>shared with ${others.join(", ")}</small>` : nothing}`;
  }
  const holders = listHolders(name);
  if (holders.length) return html`<small>on ${holders.join(", ")}</small>`;
  const known = findFit(name);
  return isDamaged(disk) ? badge("damaged") : fitMark(known?.fit, known?.summary);
}

/** Return size, parameters, quantization and perhaps the day of a model in words. @param {LocalModel} [disk] */
export function describeFiles(disk, hasDay = false) {
  const { parameter_size: parameters, quantization_level: quantization } = disk?.details ?? {};
  const day = disk && hasDay && new Date(disk.modified_at).toLocaleDateString("en-GB");
  return [parameters, quantization, disk && fileSize(disk.size), day].filter(Boolean).join(" · ");
}

/** Return what one does with a model: chat with it, load or unload it. @param {Model} model */
export function mainActions({ name, disk, live }) {
  const chats = !disk?.capabilities || disk.capabilities.includes("completion");
  const chat = html`<a class="button" aria-label="Chat with ${name}" href=${linkTo("chat", undefined, { model: name })}>Chat</a>`;
  const load = html`<button aria-label="Load ${name}" @click=${() => actions.load(name)}>Load</button>`;
  const unload = html`<button aria-label="Unload ${name}" ?disabled=${live?.state === "stopping"} @click=${() => actions.unload(name)}>Unload</button>`;
  const isLoaded = (live && live.state !== "failed") || listHolders(name).length;
  return html`${isLoaded ? unload : load} ${chats ? chat : nothing}`;
}

customElements.define("model-list", ModelList);
