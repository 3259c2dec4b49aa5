/** The plan of a model, with its choices: quantization, context and engine. Each choice is planned anew. */

import { count, fileSize } from "../format.js";
import { ask, explain, isForbidden } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";
import * as actions from "./actions.js";
import { planReport } from "./plan-report.js";

/** Tokens to choose from: those above the automatic context, as a request can only raise it. */
const CONTEXTS = [8192, 16_384, 32_768, 65_536, 131_072, 262_144];

class PlanChoices extends View {
  /** To be set before it is shown. `model`: a name. `isHere`: it is to be loaded, not downloaded. */
  model = "";
  isHere = false;

  /** @type {{ model?: string, engine?: string, context_length?: number }} */ choice = {}; // model, engine and context_length, where they are not the server's
  /** @type {Plan | null} */ first = null; // the plan without a choice: it knows all that there is to choose from
  /** @type {Plan | null} */ plan = null;
  problem = "";

  enter() {
    this.ask();
  }

  leave() {
    this.asking?.abort();
  }

  /** @param {keyof PlanChoices["choice"]} field @param {string | number} value */
  choose(field, value) {
    this.choice = { ...this.choice, [field]: value || undefined };
    this.ask();
  }

  async ask() {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    this.update();
    try {
      const plan = await ask("api/plan", { model: this.model, ...this.choice }, { signal: asking.signal });
      this.first ??= plan;
      Object.assign(this, { plan, problem: "" });
    } catch (error) {
      if (asking.signal.aborted) return;
      this.problem = isForbidden(error) ? "Only keys with the scope read can see plans." : explain(error);
    }
    if (this.asking === asking) this.asking = null;
    this.update();
  }

  template() {
    const { plan, problem } = this;
    return html`
      ${this.first ? this.choices(this.first) : nothing}
      <div role="status">
        ${problem ? html`<p class="error">${problem}</p>` : nothing}
        ${this.asking ? html`<p class="muted">Planning for ${this.choice.model ?? this.model} …</p>` : nothing}
      </div>
      ${plan && !problem ? html`${this.action(plan)} ${planReport(plan)}` : nothing}
    `;
  }

  /** @param {Plan} first */
  choices({ candidates, engines, context_length: context = 0, max_context_length: most }) {
    const named = (candidates ?? [])
      .filter((row) => row.quantization && row.repository)
      .toSorted((a, b) => Number(a.size_bytes) - Number(b.size_bytes));
    const contexts = CONTEXTS.filter((tokens) => tokens > context && tokens <= (most ?? tokens));
    const installed = (engines ?? []).filter((row) => row.version);
    return html`<div class="choices">
      ${named.length > 1 && !this.isHere ? this.quantizations(named) : nothing}
      <label>
        <span>Context</span>
        <select @change=${(event) => this.choose("context_length", Number(event.target.value))}>
          <option value="">automatic${context ? `: ${count(context)} tokens` : ""}</option>
          ${contexts.map((tokens) => html`<option value=${tokens}>${count(tokens)} tokens</option>`)}
        </select>
      </label>
      ${installed.length > 1
        ? html`<label>
            <span>Engine</span>
            <select @change=${(event) => this.choose("engine", event.target.value)}>
              <option value="">automatic</option>
              ${installed.map((row) => html`<option value=${row.engine}>${row.title}</option>`)}
            </select>
          </label>`
        : nothing}
    </div>`;
  }

  /** @param {Candidate[]} rows */
  quantizations(rows) {
    const taken = this.plan?.candidates?.find((row) => row.taken);
    return html`<div role="group" aria-label="Quantization" class="options">
      ${rows.map(
        (row) => html`<button
          aria-pressed=${row.repository === taken?.repository && row.quantization === taken?.quantization}
          title=${row.reason}
          @click=${() => this.choose("model", `hf.co/${row.repository}:${row.quantization}`)}
        >
          ${row.quantization} <small>${fileSize(row.size_bytes)}</small>
        </button>`,
      )}
    </div>`;
  }

  /** Return what can be done with the plan: download the model, or load it as it was chosen. @param {Plan} plan */
  action(plan) {
    const { choice } = this;
    const name = choice.model ?? this.model;
    if (plan.download_bytes) {
      // what does not fit is pulled by the name of its quantization only, as `vllama pull` does
      const named = plan.error ? plan.model : name;
      if (plan.error && named.endsWith(":latest")) return nothing;
      const start = () => {
        actions.pull(named);
        this.dispatchEvent(new Event("download", { bubbles: true }));
      };
      return html`<button class=${plan.error ? "" : "primary"} @click=${start}>
        ${plan.error ? "Download anyway" : "Download"} (${fileSize(plan.download_bytes)})
      </button>`;
    }
    if (!this.isHere || plan.error) return nothing;
    const { engine, context_length: context } = choice;
    if (!engine && !context) return nothing;
    const { title } = this.first?.engines.find((row) => row.engine === engine) ?? {};
    const words = [title, context && `${count(context)} tokens of context`].filter(Boolean).join(" and ");
    const load = () => actions.load(name, { num_ctx: context, engine });
    return html`<button class="primary" @click=${load}>Load with ${words}</button>`;
  }
}

customElements.define("plan-choices", PlanChoices);
