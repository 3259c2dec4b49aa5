/** The form that adds a model: its plan is shown before anything is downloaded. */

import "./plan-choices.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

class PullForm extends View {
  plan = null; // the element of the plan that is shown

  template() {
    return html`
      <form class="row" @submit=${this.show}>
        <label class="grow"
          ><span>Name of a model</span>
          <input
            name="model"
            required
            autocomplete="off"
            autocapitalize="none"
            spellcheck="false"
            placeholder="llama3.2:3b, Qwen/Qwen3-8B, …"
        /></label>
        <button class="primary">Show the plan</button>
      </form>
      ${this.plan ? this.card(this.plan) : nothing}
    `;
  }

  card(plan) {
    return html`<section class="card" aria-label="Plan for ${plan.model}" @download=${this.reset}>
      <header class="row">
        <h3 class="grow">Plan for ${plan.model}</h3>
        <button class="quiet" @click=${this.close}>Close</button>
      </header>
      ${plan}
    </section>`;
  }

  show(event) {
    event.preventDefault();
    const model = new FormData(event.target).get("model").trim();
    this.plan = Object.assign(document.createElement("plan-choices"), { model });
    this.update();
  }

  reset() {
    this.querySelector("form").reset();
    this.close();
  }

  close() {
    this.plan = null;
    this.update();
  }
}

customElements.define("pull-form", PullForm);
