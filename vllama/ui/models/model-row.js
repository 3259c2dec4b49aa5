/** One model in the table: a line, and below it the details once its name is pressed. */

import { count, duration, fileSize, memorySize, plural, secondsUntil } from "../format.js";
import { listSharing, mayNotRead, state } from "../live/state.js";
import { badge } from "../parts/badge.js";
import { loadProgress } from "../parts/load-progress.js";
import { requestTable } from "../activity/request-table.js";
import { linkTo } from "../route.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import * as actions from "./actions.js";
import { poolTitle } from "./memory-overview.js";
import { planReport, whatHelps } from "./plan-report.js";

const COLUMNS = 7;

/**
 * Return the rows of a model: `name`, `disk` (its row of `/api/tags`) and `live` (that of the
 * event stream), either of which may be missing. `page` keeps which rows are open.
 */
export function modelRows(model, page) {
  const { name, disk, live } = model;
  const open = page.opened.has(name);
  const id = `details-${name}`;
  return html`
    <tr class=${open ? "open" : ""}>
      <th scope="row">
        <button
          class="disclosure"
          aria-expanded=${open}
          aria-controls=${open ? id : nothing}
          @click=${() => page.toggle(name)}
        >
          ${name}
        </button>
        <small>${describeFiles(disk)}</small>
      </th>
      <td data-label="State">${describeState(model)}</td>
      <td data-label="Engine">${live?.engine || "–"} ${describeSharing(model)}</td>
      <td data-label="Memory">${describeMemory(live)}</td>
      <td data-label="Requests">${describeRequests(live)}</td>
      <td data-label="Unloads">${describeExpiry(live)}</td>
      <td class="actions">${mainActions(model)}</td>
    </tr>
    ${open
      ? html`<tr class="details" id=${id}>
          <td colspan=${COLUMNS}>${details(model, page)}</td>
        </tr>`
      : nothing}
  `;
}

/** Tell whether a model's files could not be read: every other one can do something. */
export const isDamaged = (disk) => disk?.details?.format !== "remote" && disk?.capabilities?.length === 0;

function describeState({ disk, live }) {
  if (live?.load) return html`${badge(live.state)} ${loadProgress(live.name, live.load)}`;
  if (live) return badge(live.state);
  if (isDamaged(disk)) return badge("damaged");
  return mayNotRead() ? "–" : badge("not loaded");
}

function describeFiles(disk) {
  const { parameter_size: parameters, quantization_level: quantisation } = disk?.details ?? {};
  return [parameters, quantisation, disk && fileSize(disk.size)].filter(Boolean).join(" · ");
}

function sum(live, field) {
  return Object.values(live?.memory ?? {}).reduce((bytes, pool) => bytes + (pool[field] ?? 0), 0);
}

function describeMemory(live) {
  const measured = sum(live, "measured");
  const planned = sum(live, "planned");
  if (measured) return memorySize(measured);
  return planned ? html`${memorySize(planned)} <small>planned</small>` : "–";
}

function describeSharing({ name, live }) {
  const others = listSharing(live).filter((other) => other !== name);
  return others.length ? html`<small>shared with ${others.join(", ")}</small>` : nothing;
}

function describeRequests(live) {
  if (!live || live.state === "failed") return "–";
  const slots = live.slots ? ` of ${live.slots}` : "";
  const waiting = live.queued ? html`, <strong>${live.queued} waiting</strong>` : nothing;
  const ending = live.ending ? html`<small>${live.ending} ending on its previous engine</small>` : nothing;
  return html`${live.requests}${slots} running${waiting} ${ending}`;
}

function describeExpiry(live) {
  if (!live || live.state === "failed") return "–";
  if (live.pinned) return "never (pinned)";
  if (!live.expires_at) return "when idle";
  const left = secondsUntil(live.expires_at);
  return left > 0 ? `in ${duration(left)}` : "now";
}

function mainActions({ name, disk, live }) {
  const chats = !disk?.capabilities || disk.capabilities.includes("completion");
  const chat = html`<a
    class="button"
    aria-label="Chat with ${name}"
    href=${linkTo("chat", undefined, { model: name })}
    >Chat</a
  >`;
  const idle = !live || live.state === "failed";
  return html`${chats ? chat : nothing}
  ${idle
    ? html`<button aria-label="Load ${name}" @click=${() => actions.load(name)}>Load</button>`
    : html`<button
        aria-label="Unload ${name}"
        ?disabled=${live.state === "stopping"}
        @click=${() => actions.unload(name)}
      >
        Unload
      </button>`}`;
}

function details({ name, disk, live }, page) {
  const plan = page.opened.get(name);
  const names = live ? listSharing(live) : [name];
  const requests = [...state.requests.values()].filter((row) => names.includes(row.model));
  return html`
    ${live?.error ? failure(live) : nothing}
    ${live?.cause && !live.error ? html`<p class="verdict">${live.cause}</p>` : nothing}
    ${names.length > 1
      ? html`<p>${names.join(" and ")} have the same files and share one engine: what unloads one of them unloads all.</p>`
      : nothing}
    <dl class="facts">
      ${fact("Engine", live?.engine)} ${fact("Context", live?.context_length ? plural(live.context_length, "token") : "")}
      ${fact("Parallel requests", live?.slots || "")}
      ${Object.entries(live?.memory ?? {}).map(([pool, { planned, measured }]) =>
        fact(`Memory, ${poolTitle(pool)}`, `${memorySize(planned)} planned, ${memorySize(measured)} measured`),
      )}
      ${fact("Capabilities", disk?.capabilities?.join(", "))} ${fact("Format", disk?.details?.format)}
      ${fact("Digest", (live?.digest ?? disk?.digest)?.replace("sha256:", "").slice(0, 12))}
    </dl>
    <div class="row">
      ${live?.pinned
        ? html`<button @click=${() => actions.unpin(name)}>Unpin</button>`
        : html`<button @click=${() => actions.pin(name)}>Pin: keep it loaded</button>`}
      ${live?.log ? html`<a class="button" href=${linkTo("logs", live.log)}>Open its log</a>` : nothing}
      ${page.readOnly || !disk
        ? nothing
        : html`<button class="danger" @click=${() => actions.remove(name)}>Delete …</button>`}
    </div>
    ${requests.length ? html`<h3>Requests</h3>${requestTable(requests)}` : nothing}
    <h3>${live && live.state !== "failed" ? "The plan that it runs by" : "How it would be loaded"}</h3>
    ${showPlan(plan)}
  `;
}

/** Return what is wrong with a model whose files cannot be read, and what to do. */
export const damage = (disk) => html`<div class="verdict bad">
  <p><strong>Its files are damaged:</strong> ${disk.problem ?? "they cannot be read"}.</p>
  <p><strong>What helps:</strong> delete the model, and download or create it again.</p>
</div>`;

/** Return why a model failed, what to do, and where to read more. */
export function failure(live) {
  const { cause, hint } = live.error;
  return html`<div class="verdict bad">
    <p><strong>${live.state === "failed" ? "It could not be loaded" : "Its last failure"}:</strong> ${cause}</p>
    ${live.log && hint?.includes("vllama logs") ? nothing : whatHelps(hint)}
    ${live.log ? html`<p><a href=${linkTo("logs", live.log)}>Open the log of the engine</a></p>` : nothing}
  </div>`;
}

function showPlan(plan) {
  if (!plan) return html`<p class="muted">Planning …</p>`;
  if (plan.failed) return html`<p class="error">${plan.failed}</p>`;
  return planReport(plan);
}

function fact(label, value) {
  if (value === undefined || value === null || value === "") return nothing;
  return html`<div><dt>${label}</dt><dd>${typeof value === "number" ? count(value) : value}</dd></div>`;
}
