/** A plan (`/api/plan`) for a person: does the model fit, why, and what else there would be. */

import { count, fileSize } from "../format.js";
import { memoryBar } from "../parts/memory-bar.js";
import { table } from "../parts/table.js";
import { isForTerminal } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

const MEMORY = [
  ["weights_bytes", "weights"],
  ["kv_cache_bytes", "KV cache"],
  ["compute_bytes", "computing"],
  ["process_bytes", "process"],
];

/** Return how a model fits by its plan, and that in a sentence. @param {Plan} plan */
export function judge({ error, now, memory, devices = [] }) {
  if (error) return { fit: memory ? "too large" : "refused", summary: error };
  const isDivided = devices.length > 1 && devices.some(({ pool }) => pool === "ram");
  return { fit: now && !now.fits ? "later" : isDivided ? "partly" : "fits", summary: now?.summary };
}

/** Return the template of a plan. @param {Plan} plan */
export function planReport(plan) {
  const fits = !plan.error;
  return html`<div class="plan">
    ${fits ? goodNews(plan) : badNews(plan)}
    ${plan.devices?.map((device) => deviceBar(plan, device))}
    ${list("Parameters", plan.parameters)} ${list("Why", plan.reasons)} ${list("Notes", plan.notes)}
    ${section("Available quantizations", choices(CANDIDATES, plan.candidates), !fits)}
    ${section("Engines", choices(ENGINES, plan.engines))}
    ${section("If it does not start", ladder(plan))} ${section("Files", choices(FILES, plan.files))}
    ${section("Command", plan.command?.length ? html`<pre>${plan.command.join(" ")}</pre>` : nothing)}
  </div>`;
}

/** @param {Plan} plan */
function goodNews(plan) {
  const engine = plan.engines?.find((row) => row.taken);
  const { now } = plan;
  return html`<div class="verdict ${now && !now.fits ? "bad" : "good"}"><p>
    <strong>${now?.summary ?? (plan.loaded ? "It is loaded" : "It fits")}.</strong> ${engine?.title ?? plan.engine} ${plan.loaded ? "serves" : "would serve"} it
    ${plan.context_length ? html`with a context of ${count(plan.context_length)} tokens` : nothing}
    ${plan.quantization ? html`as ${plan.quantization}` : nothing}.
    ${plan.download_bytes
      ? html`To download: <strong>${fileSize(plan.download_bytes)}</strong>.`
      : "Nothing needs to be downloaded."}
  </p>${whatHelps(now?.hint)}</div>`;
}

/** @param {Plan} plan */
function badNews(plan) {
  return html`<div class="verdict bad">
    <p><strong>Cannot be served here.</strong> ${plan.error}</p>
    ${whatHelps(plan.hint)}
  </div>`;
}

/** Return a hint of the server's; it says so if that is for the terminal. @param {string | null} [hint] */
export function whatHelps(hint) {
  if (!hint) return nothing;
  return html`<p><strong>What helps${isForTerminal(hint) ? " (in a terminal)" : ""}:</strong> ${hint}</p>`;
}

/** @param {Plan} plan @param {NonNullable<Plan["devices"]>[number]} device */
function deviceBar(plan, device) {
  const { memory = {} } = plan;
  const total = memory.total_bytes || 1;
  const share = device.takes_bytes / total;
  const free = plan.error ? device.usable_bytes : device.free_bytes;
  const used = Math.max(0, device.total_bytes - free);
  return memoryBar({
    title: device.device,
    totalBytes: device.total_bytes,
    parts: [
      { label: plan.error ? "reserved" : "in use or reserved", bytes: used, kind: "other" },
      ...MEMORY.map(([field, label]) => ({
        label,
        bytes: (memory[field] ?? 0) * Math.min(share, 1),
        kind: /** @type {const} */ ("model"),
      })),
    ],
  });
}

/** @param {string} title @param {string[]} [lines] */
function list(title, lines) {
  if (!lines?.length) return nothing;
  return html`<h4>${title}</h4>
    <ul class="reasons">${lines.map((line) => html`<li>${line}</li>`)}</ul>`;
}

/** @param {string} title @param {Renderable} content */
function section(title, content, open = false) {
  if (content === nothing) return nothing;
  return html`<details ?open=${open}><summary>${title}</summary>${content}</details>`;
}

/** Return a table of what there is to choose from, nothing without rows. @template {{ taken?: boolean }} Row @param {Column<Row>[]} columns @param {Row[]} [rows] */
function choices(columns, rows) {
  const [[label, heading], ...others] = columns;
  /** @type {Column<Row>} */
  const first = [label, (row) => html`${row.taken ? "→ " : ""}${heading(row)}`];
  return rows?.length ? table("plain", [first, ...others], rows, { mark: ({ taken }) => (taken ? "taken" : "") }) : nothing;
}

/** @type {Column<PlanEngine>[]} */
const ENGINES = [
  ["Engine", ({ title }) => title],
  ["Version", ({ version }) => version ?? "–"],
  ["Why, or why not", ({ reason }) => reason],
];
/** @type {Column<Candidate>[]} */
const CANDIDATES = [
  ["Quantization", ({ quantization }) => quantization ?? "–"],
  ["Repository", ({ repository }) => repository],
  ["Size", (row) => fileSize(row.size_bytes)],
  ["Reason", ({ reason }) => reason],
];
/** @type {Column<Plan["files"][number] & { taken?: boolean }>[]} */
const FILES = [
  ["File", ({ name }) => name],
  ["Size", (file) => fileSize(file.size_bytes)],
  ["Where", ({ here }) => (here ? "on this disk" : "to download")],
];

/** The plans that would be tried after a failure; the same steps often suit several kinds. @param {Plan} plan */
function ladder(plan) {
  const steps = new Map();
  for (const { when, then } of Object.values(plan.if_it_fails ?? {})) {
    if (!then.length) continue;
    const key = then.join("; then ");
    steps.set(key, [...(steps.get(key) ?? []), when]);
  }
  if (!steps.size) return nothing;
  return html`<dl>
    ${[...steps].map(
      ([then, when]) => html`<dt>${when.join(", or ")}</dt><dd>${then}</dd>`,
    )}
  </dl>`;
}
