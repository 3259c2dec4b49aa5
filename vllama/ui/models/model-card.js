/**
 * A model that can be downloaded: its quantizations with their sizes, whether it fits, and its plan below.
 *
 * A card that is visible asks for the plan, which reads the header of a file on the hub: few cards at
 * a time, and once for each choice until what is loaded or on the disk has changed.
 */

import { fileSize } from "../format.js";
import { library } from "../live/library.js";
import { changes, state } from "../live/state.js";
import { ask } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import * as actions from "./actions.js";
import { Planned } from "./planned.js";
import { judge, planReport } from "./plan-report.js";
import { contextSign, fitMark, signs } from "./signs.js";

const PAUSE_MS = 300; // of a card in view, before its plan is asked for
const MOST_AT_ONCE = 3;
const MOST_KEPT = 100;

/** @type {Map<string, Plan>} */
const kept = new Map(); // by what was asked for
/** @type {(() => void)[]} */
const waiting = [];
let running = 0;

for (const topic of ["disk", "fits"]) changes.addEventListener(topic, () => kept.clear());

/** @param {{ model: string }} body @param {AbortSignal} signal */
async function findPlan(body, signal) {
  const name = JSON.stringify(body);
  const known = kept.get(name);
  if (known) return known;
  while (running >= MOST_AT_ONCE) await new Promise((/** @type {(value?: unknown) => void} */ resolve) => waiting.push(resolve));
  running += 1;
  try {
    signal.throwIfAborted();
    const plan = await ask("api/plan", body, { signal });
    if (kept.size >= MOST_KEPT) kept.clear();
    kept.set(name, plan);
    return plan;
  } finally {
    running -= 1;
    waiting.shift()?.();
  }
}

class ModelCard extends Planned {
  static topics = ["library", "fits", "pulls"];

  /** @type {Schemas["Recommendation"] | undefined} */ known = undefined; // its row of the table of well-known models, to be set before it is shown
  isOffline = false; // to be set before it is shown: the hub could not be reached
  isOpen = false;

  seen = new IntersectionObserver(([{ isIntersecting }]) => {
    clearTimeout(this.timer);
    if (isIntersecting && this.isUnsized()) this.timer = setTimeout(() => this.ask(), PAUSE_MS);
  });

  /** Tell whether only its plan can say how large it is, or what of it may be downloaded. */
  isUnsized() {
    return !this.isOffline && !this.plan && !this.asking && (!this.known || this.known.fit === "too large");
  }

  enter() {
    this.seen.observe(this);
  }

  leave() {
    super.leave();
    clearTimeout(this.timer);
    this.seen.disconnect();
  }

  /** @param {AbortSignal} signal */
  fetchPlan(signal) {
    return findPlan({ model: this.model, ...this.choice }, signal);
  }

  template() {
    const { plan, known, problem, isOpen } = this;
    const fit = plan ? judge(plan) : known && { fit: known.fit === "fits" ? "runs" : known.fit, summary: known.where };
    return html`
      <header class="row">
        <h3 class="grow">${this.model}</h3>
        ${signs(known?.uses.map((use) => (use === "embeddings" ? "embedding" : use)))} ${fitMark(fit?.fit, fit?.summary)}
      </header>
      <p class="muted">${this.describe()}</p>
      ${this.first ? this.quantizations(this.first) : nothing}
      <div role="status">
        ${problem ? html`<p class="muted">${problem}</p>` : nothing}
        ${this.asking ? html`<p class="muted">Reading its sizes …</p>` : nothing}
      </div>
      <div class="row">
        ${this.download()}
        <button class="disclosure" aria-expanded=${isOpen} aria-label="Plan for ${this.model}" @click=${this.unfold}>Plan</button>
      </div>
      ${isOpen && plan ? planReport(plan) : nothing}
    `;
  }

  /** Return what is known of its files without its plan, nothing where that has the sizes. */
  describe() {
    const { known, first } = this;
    if (first?.candidates?.length || !known) return nothing;
    return html`${known.quantization} · ${fileSize(known.download_bytes)} · ${contextSign(known.max_context_length)}`;
  }

  /** Return the quantizations; a click chooses one. @param {Plan} first */
  quantizations({ candidates }) {
    const taken = this.plan?.candidates?.find((row) => row.taken);
    const rows = (candidates ?? []).filter((row) => row.quantization && row.repository).toSorted((a, b) => Number(a.size_bytes) - Number(b.size_bytes));
    if (!rows.length) return nothing;
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

  download() {
    const { plan, known } = this;
    const name = String(this.choice.model ?? this.model);
    if (library.models.some((row) => row.name === name || row.name === plan?.model) || plan?.download_bytes === 0) return html`<span class="muted">On this server</span>`;
    // what does not fit is pulled by the name of its quantization only, as `vllama pull` does
    const named = plan?.error ? plan.model : name;
    if (plan ? plan.error && named.endsWith(":latest") : known?.fit === "too large") return nothing;
    const size = plan?.download_bytes ?? known?.download_bytes;
    const pull = state.pulls.get(plan?.model ?? named);
    if (pull && !pull.ended_at) return html`<progress aria-label="Download of ${named}" value=${pull.completed ?? 0} max=${pull.total || 1}></progress>`;
    const words = `${plan?.error ? "Download anyway" : "Download"}${size ? ` (${fileSize(size)})` : ""}`;
    return html`<button class=${plan?.error ? "" : "primary"} aria-label="${words} ${named}" ?disabled=${this.problem} @click=${() => actions.pull(named)}>${words}</button>`;
  }

  unfold() {
    this.change({ isOpen: !this.isOpen });
    if (this.isOpen && !this.plan && !this.asking) this.ask();
  }
}

customElements.define("model-card", ModelCard);
