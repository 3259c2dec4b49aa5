/** The form that adds a model: its plan is shown before anything is downloaded. */

import "./plan-choices.js";
import { ask } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

const PAUSE_MS = 300; // in typing, before the names are looked up

class PullForm extends View {
  /** @type {PlanElement | null} */ plan = null; // the element of the plan that is shown
  /** @type {Partial<Answer<"api/search?">> & { library: string[], hub: string[] }} */ found = { library: [], hub: [] }; // names with what is typed in them (`/api/search`)

  template() {
    const { library, hub, problem } = this.found;
    return html`
      <form class="row" @submit=${this.show}>
        <label class="grow"
          ><span>Model name</span>
          <input
            name="model"
            required
            autocomplete="off"
            autocapitalize="none"
            spellcheck="false"
            placeholder="llama3.2:3b, Qwen/Qwen3-8B, …"
            list="found-names"
            @input=${this.look}
        /></label>
        <button class="primary">Show the plan</button>
        <datalist id="found-names">${[...library, ...hub].map((name) => html`<option value=${name}></option>`)}</datalist>
      </form>
      ${problem ? html`<p class="muted">Only Ollama's names are suggested: ${problem}</p>` : nothing}
      ${this.plan ? this.card(this.plan) : nothing}
    `;
  }

  /** @param {PlanElement} plan */
  card(plan) {
    return html`<section class="card" aria-label="Plan for ${plan.model}" @download=${this.reset}>
      <header class="row">
        <h3 class="grow">Plan for ${plan.model}</h3>
        <button class="quiet" @click=${this.close}>Close</button>
      </header>
      ${plan}
    </section>`;
  }

  /** Look up names for what is typed, once the user pauses. @param {FieldEvent} event */
  look(event) {
    clearTimeout(this.timer);
    this.looking?.abort();
    const { signal } = (this.looking = new AbortController());
    const text = event.target.value.trim();
    if (text.length < 2) return;
    this.timer = setTimeout(async () => {
      try {
        this.found = await ask(`api/search?${new URLSearchParams({ q: text })}`, undefined, { signal });
      } catch {
        return; // the user has typed on, or the plan will say what is wrong
      }
      this.update();
    }, PAUSE_MS);
  }

  /** @param {FormEvent} event */
  show(event) {
    event.preventDefault();
    const model = String(new FormData(event.target).get("model")).trim();
    this.plan = Object.assign(document.createElement("plan-choices"), { model });
    this.update();
  }

  reset() {
    this.querySelector("form")?.reset();
    this.close();
  }

  close() {
    this.plan = null;
    this.update();
  }
}

customElements.define("pull-form", PullForm);
