/** The plan of a model that is here, and its load options, each with what it changes in the plan. */

import { count, memorySize } from "../format.js";
import { state } from "../live/state.js";
import { ask } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { load } from "./actions.js";
import { Planned } from "./planned.js";
import { planReport } from "./plan-report.js";

const CONTEXTS = [4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144];
const CACHES = [["f16", "f16"], ["q8_0", "q8_0: half of f16"], ["q4_0", "q4_0: a quarter, less precise"]];

class PlanChoices extends Planned {
  isAdmin = false; // to be set before it is shown: the key may choose what is not Ollama's

  /** @type {Record<string, string>} */ effects = {}; // what each choice has changed in the plan

  enter() {
    this.ask();
  }

  /** @param {AbortSignal} signal */
  fetchPlan(signal) {
    return ask("api/plan", { model: this.model, options: this.choice }, { signal });
  }

  /** @param {string} field @param {string | number} value */
  async choose(field, value) {
    const before = this.plan;
    await super.choose(field, value);
    this.effects[field] = before && this.plan && field in this.choice ? describeChange(before, this.plan) : "";
    this.update();
  }

  template() {
    const { first, plan, problem } = this;
    return html`
      ${first ? this.options(first) : nothing}
      <div role="status">
        ${problem ? html`<p class="error">${problem}</p>` : nothing}
        ${this.asking ? html`<p class="muted">Planning for ${this.model} …</p>` : nothing}
      </div>
      ${plan && !problem ? planReport(plan) : nothing}
    `;
  }

  /** @param {Plan} first */
  options(first) {
    const { engines = [], context_length: context = 0, max_context_length: most, reasons = [] } = first;
    const contexts = CONTEXTS.filter((tokens) => tokens <= (most ?? tokens));
    const installed = engines.filter((row) => row.version);
    const hasGpu = Object.keys(state.samples.at(-1)?.memory ?? {}).some((pool) => pool !== "ram");
    const isChosen = Object.keys(this.choice).length;
    const isLoaded = this.plan?.loaded;
    return html`<details class="load-options">
      <summary>Load options</summary>
      <div class="choices">
        ${this.select("num_ctx", "Context", contexts.map((tokens) => [tokens, `${count(tokens)} tokens`]), `automatic${context ? `: ${count(context)} tokens` : ""}`)}
        ${hasGpu ? this.number("num_gpu", "GPU layers", 0) : nothing}
        ${this.number("num_thread", "Threads", 1)}
        ${this.isAdmin
          ? html`${this.select("kv_cache_type", "KV cache", CACHES)} ${this.number("num_parallel", "Parallel requests", 1)}
            ${installed.length > 1 ? this.select("engine", "Engine", installed.map((row) => [row.engine, row.title])) : nothing}`
          : nothing}
        ${reasons.some((reason) => reason.includes("draft model")) ? this.select("draft_num_predict", "Draft model", [[0, "off"]]) : nothing}
      </div>
      <p class="row">
        <button class="primary" ?disabled=${!isChosen || this.asking || this.plan?.error} @click=${() => load(this.model, this.choice, isLoaded)}>
          ${isLoaded ? "Reload" : "Load"} with these options
        </button>
        <small>These options apply until the model is unloaded. To use them for every load, set them in the config file.</small>
      </p>
    </details>`;
  }

  /** @param {string} field @param {string} label @param {(string | number)[][]} values */
  select(field, label, values, automatic = "automatic") {
    /** @param {string} text */
    const choose = (text) => this.choose(field, values.find(([value]) => String(value) === text)?.[0] ?? "");
    return html`<label>
      <span>${label}</span>
      <select @change=${(event) => choose(event.target.value)}>
        <option value="">${automatic}</option>
        ${values.map(([value, words]) => html`<option value=${value}>${words}</option>`)}
      </select>
      ${this.effect(field)}
    </label>`;
  }

  /** @param {string} field @param {string} label @param {number} least */
  number(field, label, least) {
    /** @param {HTMLInputElement} input */
    const choose = (input) => input.reportValidity() && this.choose(field, input.value && input.valueAsNumber);
    return html`<label>
      <span>${label}</span>
      <input type="number" min=${least} step="1" placeholder="automatic" @change=${(event) => choose(event.target)} />
      ${this.effect(field)}
    </label>`;
  }

  /** @param {string} field */
  effect(field) {
    return this.effects[field] ? html`<small class="effect">${this.effects[field]}</small>` : nothing;
  }
}

/** Say what is different in a plan: context and memory, else its reasons. @param {Plan} before @param {Plan} after */
function describeChange(before, after) {
  if (after.error) return "It does not fit with these options.";
  const changes = (after.devices ?? []).map(({ device, pool, takes_bytes: bytes }) => {
    const was = before.devices?.find((row) => row.pool === pool)?.takes_bytes ?? 0;
    return was === bytes ? "" : `${device}: ${memorySize(was)} → ${memorySize(bytes)}`;
  });
  if (before.context_length !== after.context_length) changes.unshift(`context: ${count(before.context_length)} → ${count(after.context_length)}`);
  const reasons = (after.reasons ?? []).filter((reason) => !before.reasons?.includes(reason));
  return changes.filter(Boolean).join(", ") || reasons.join("; ") || "no change";
}

customElements.define("plan-choices", PlanChoices);
