/** The search for models to download: well-known ones, those of Ollama's library and those of the hub. */

import "./model-card.js";
import { listRecommended } from "../live/fits.js";
import { library } from "../live/library.js";
import { ask, explain } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";

const PAUSE_MS = 300; // in typing, before names are looked up
const STEP = 9; // cards that one click shows

class ModelSearch extends View {
  static topics = ["fits", "library"];

  text = "";
  named = ""; // the text when Enter was pressed: it may be a name that no search finds
  most = STEP;
  /** @type {Answer<"api/search?"> | null} */ found = null; // for the text
  problem = "";

  rendered() {
    if (this.autofocus) this.querySelector("input")?.focus();
    this.autofocus = false; // once
  }

  template() {
    const cards = this.list();
    return html`
      <form class="row" role="search" @submit=${this.submit}>
        <label class="grow"
          ><span>Model name, or part of it</span>
          <input
            name="model"
            type="search"
            autocomplete="off"
            autocapitalize="none"
            spellcheck="false"
            placeholder="llama3.2, Qwen/Qwen3-8B, …"
            @input=${this.look}
        /></label>
        <button class="primary">Search</button>
      </form>
      <p role="status" class="muted">${this.describe(cards.length)}</p>
      <ul class="offers">
        ${repeat(cards.slice(0, this.most), (name) => name, (name) => html`<li>${this.card(name)}</li>`)}
      </ul>
      ${cards.length > this.most ? html`<button @click=${() => this.change({ most: this.most + STEP })}>Show more</button>` : nothing}
    `;
  }

  /** Return the element of a card, which lasts as long as its place in the list. @param {string} name */
  card(name) {
    const known = listRecommended().find((row) => row.model === name);
    return html`<model-card class="card" .model=${name} .known=${known} .isOffline=${Boolean(this.found?.problem)}></model-card>`;
  }

  /** Return the names to show: without a text, the well-known models that run here. */
  list() {
    const text = this.text.toLowerCase();
    const known = listRecommended().filter((row) => (text ? row.model.includes(text) : row.fit === "fits"));
    const here = new Set(text ? [] : library.models.map((row) => row.name));
    const { library: names = [], hub = [] } = this.found ?? {};
    // "latest" is one of the others, except where it is the only one
    const tagged = names.filter((name) => !name.endsWith(":latest") || !names.some((other) => other !== name && other.startsWith(name.slice(0, -6))));
    const listed = [...known.map((row) => row.model), ...tagged, ...hub].filter((name) => !here.has(name));
    return [...new Set(this.named ? [this.named, ...listed] : listed)];
  }

  /** @param {number} number */
  describe(number) {
    if (this.problem) return this.problem;
    if (!this.text) return number ? "These models run well on this machine." : "";
    if (this.found?.problem) return `The hub could not be searched: ${this.found.problem}. Models that vllama and Ollama know are shown.`;
    if (!this.found) return "Searching …";
    return number ? "" : "No models found. Press Enter to look up exactly this name.";
  }

  /** Look up names for what is typed, once the user pauses. @param {FieldEvent} event */
  look(event) {
    this.text = event.target.value.trim();
    this.change({ named: "", found: null, problem: "", most: STEP });
    clearTimeout(this.timer);
    this.looking?.abort();
    if (this.text) this.timer = setTimeout(() => this.search(), PAUSE_MS);
  }

  async search() {
    const { signal } = (this.looking = new AbortController());
    try {
      this.change({ found: await ask(`api/search?${new URLSearchParams({ q: this.text })}`, undefined, { signal }) });
    } catch (error) {
      if (!signal.aborted) this.change({ problem: explain(error) });
    }
  }

  /** @param {FormEvent} event */
  submit(event) {
    event.preventDefault();
    this.change({ named: this.text });
  }
}

customElements.define("model-search", ModelSearch);
