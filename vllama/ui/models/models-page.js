/** Models: what is here and what runs, memory, failures, downloads, and adding a model. */

import "./pull-form.js";
import { fileSize } from "../format.js";
import { library, listLive, refreshLibrary } from "../live/library.js";
import { forgetPull, state } from "../live/state.js";
import { readSetting } from "../live/settings.js";
import { showError } from "../parts/notices.js";
import { ask, explain, forBrowser, isForbidden } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";
import { pull, stopPull } from "./actions.js";
import { memoryOverview } from "./memory-overview.js";
import { describePace } from "./pull-pace.js";
import { damage, failure, isDamaged, modelRows } from "./model-row.js";

class ModelsPage extends View {
  static topics = ["models", "requests", "pulls", "samples", "library", "connection"];

  opened = new Map(); // names of the rows that are open → their plan, null while it is made
  filter = "";
  readOnly = false;

  enter() {
    refreshLibrary().catch(showError);
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
      ${this.failures()} ${memoryOverview()}
      ${this.readOnly
        ? nothing
        : html`<section aria-labelledby="add-title">
            <h2 id="add-title">Add a model</h2>
            <pull-form></pull-form>
            ${this.downloads()}
          </section>`}
      ${this.table()}
    `;
  }

  failures() {
    const failed = [...state.models.values()].filter((row) => row.state === "failed" && row.error);
    const damaged = library.models.filter((disk) => isDamaged(disk) && !failed.some(({ name }) => name === disk.name));
    if (!failed.length && !damaged.length) return nothing;
    return html`<section aria-labelledby="failed-title">
      <h2 id="failed-title">Needs attention</h2>
      ${failed.map((row) => html`<div class="card"><h3>${row.name}</h3>${failure(row)}</div>`)}
      ${damaged.map((disk) => html`<div class="card"><h3>${disk.name}</h3>${damage(disk)}</div>`)}
    </section>`;
  }

  downloads() {
    const pulls = [...state.pulls.values()].filter((row) => !row.ended_at || row.error);
    if (!pulls.length) return nothing;
    return html`<h3>Downloads</h3>
      <ul class="downloads">${pulls.map((row) => this.download(row))}</ul>`;
  }

  download(row) {
    const { name, status, completed, total, error } = row;
    return html`<li>
      <strong>${name}</strong>
      ${error
        ? html`<span class="error">${forBrowser(error)}</span>
            <button @click=${() => pull(name)}>Try again</button>
            <button class="quiet" @click=${() => forgetPull(name)}>Dismiss</button>`
        : html`<progress aria-label="Download of ${name}" value=${completed ?? 0} max=${total || 1}></progress>
            <span>${status}${total ? `: ${fileSize(completed)} of ${fileSize(total)}${describePace(row)}` : ""}</span>
            <button @click=${() => stopPull(name)}>Stop</button>`}
    </li>`;
  }

  table() {
    const models = this.listModels();
    const shown = models.filter(({ name }) => name.toLowerCase().includes(this.filter));
    return html`<section aria-labelledby="list-title">
      <div class="row">
        <h2 id="list-title" class="grow">On this server <span class="muted">${models.length}</span></h2>
        <input
          type="search"
          aria-label="Filter the models by name"
          placeholder="Filter"
          @input=${(event) => this.setFilter(event.target.value)}
        />
      </div>
      ${shown.length ? this.rows(shown) : this.emptyText(models)}
    </section>`;
  }

  rows(shown) {
    const titles = ["Model", "State", "Engine", "Memory", "Requests", "Unloads"];
    return html`<table class="cards models">
      <thead>
        <tr>
          ${titles.map((title) => html`<th scope="col">${title}</th>`)}
          <th scope="col"><span class="hidden">Actions</span></th>
        </tr>
      </thead>
      <tbody>${repeat(shown, ({ name }) => name, (model) => modelRows(model, this))}</tbody>
    </table>`;
  }

  emptyText(models) {
    if (models.length) return html`<p class="muted">No model has “${this.filter}” in its name.</p>`;
    return library.loaded
      ? html`<p class="muted">There is no model yet. Write the name of one above, and see its plan.</p>`
      : html`<p class="muted">${state.connection.status === "locked" ? nothing : "Loading …"}</p>`;
  }

  /** Return the models that are here: those that run or have failed first, then by name. */
  listModels() {
    const models = new Map(library.models.map((disk) => [disk.name, { name: disk.name, disk }]));
    for (const live of listLive()) {
      models.set(live.name, { ...models.get(live.name), name: live.name, live });
      for (const name of live.other_names) {
        if (models.has(name)) models.set(name, { ...models.get(name), live });
      }
    }
    const rank = ({ live }) => (live ? 0 : 1);
    return [...models.values()].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  }

  setFilter(text) {
    this.filter = text.trim().toLowerCase();
    this.update();
  }

  /** Open or close the details of a model, with a plan made now. */
  async toggle(name) {
    if (this.opened.delete(name)) {
      this.update();
      return;
    }
    this.opened.set(name, null);
    this.update();
    const plan = await ask("api/plan", { model: name }).catch((error) => ({
      failed: isForbidden(error) ? "Plans are shown to keys with the scope read." : explain(error),
    }));
    if (this.opened.has(name)) this.opened.set(name, plan);
    this.update();
  }
}

customElements.define("models-page", ModelsPage);
