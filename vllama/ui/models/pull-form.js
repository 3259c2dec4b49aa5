/** The form that adds a model: its plan is shown before anything is downloaded. */

import { fileSize } from "../format.js";
import { pull } from "./actions.js";
import { planReport } from "./plan-report.js";
import { ask, explain } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

class PullForm extends View {
  enter() {
    this.result ??= { status: "none" };
  }

  template() {
    const { status } = this.result;
    return html`
      <form class="row" @submit=${this.plan}>
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
        <button class="primary" ?disabled=${status === "asking"}>
          ${status === "asking" ? "Looking …" : "Show the plan"}
        </button>
      </form>
      <div role="status">${this.outcome()}</div>
    `;
  }

  outcome() {
    const { status, name, plan, message } = this.result;
    if (status === "none") return nothing;
    if (status === "asking") return html`<p class="muted">Looking for ${name} …</p>`;
    const close = html`<button class="quiet" @click=${() => this.show({ status: "none" })}>Close</button>`;
    if (status === "failed") return html`<div class="card"><p class="error">${message}</p>${close}</div>`;
    return html`<section class="card" aria-label="Plan for ${name}">
      <header class="row">
        <h3 class="grow">Plan for ${name}</h3>
        ${this.pullButton(name, plan)} ${close}
      </header>
      ${planReport(plan)}
    </section>`;
  }

  pullButton(name, plan) {
    if (!plan.download_bytes) return nothing;
    const start = () => {
      this.show({ status: "none" });
      this.querySelector("form").reset();
      pull(name);
    };
    const words = plan.error ? "Download anyway" : "Download";
    return html`<button class=${plan.error ? "" : "primary"} @click=${start}>
      ${words} (${fileSize(plan.download_bytes)})
    </button>`;
  }

  async plan(event) {
    event.preventDefault();
    const name = new FormData(event.target).get("model").trim();
    this.show({ status: "asking", name });
    try {
      this.show({ status: "planned", name, plan: await ask("api/plan", { model: name }) });
    } catch (error) {
      this.show({ status: "failed", name, message: explain(error) });
    }
  }

  show(result) {
    this.result = result;
    this.update();
  }
}

customElements.define("pull-form", PullForm);
