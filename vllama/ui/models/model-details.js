/** What is known of one model: shown once its name is pressed. */

import { count, fileSize, memorySize, plural } from "../format.js";
import { listSharing, state } from "../live/state.js";
import { requestTable } from "../activity/request-table.js";
import { linkTo } from "../route.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import * as actions from "./actions.js";
import { poolTitle } from "./memory-overview.js";
import { whatHelps } from "./plan-report.js";

/** Tell whether a model's files could not be read: every other one can do something. @param {LocalModel} [disk] */
export const isDamaged = (disk) => disk?.details?.format !== "remote" && disk?.capabilities?.length === 0;

/** Return the name of a model as a button that opens its details. @param {string} name @param {ModelsView} page */
export function disclosure(name, page) {
  const open = page.opened.has(name);
  return html`<button
    class="disclosure"
    aria-expanded=${open}
    aria-controls=${open ? `details-${name}` : nothing}
    @click=${() => page.toggle(name)}
  >
    ${name}
  </button>`;
}

/** Return what is known of a model; `page` keeps its plan (see plan-choices.js). @param {Model} model @param {ModelsView} page */
export function details({ name, disk, live }, page) {
  const names = live ? listSharing(live) : [name];
  const requests = [...state.requests.values()].filter((row) => names.includes(row.model));
  return html`
    ${live?.error ? failure(live) : nothing}
    ${live?.cause && !live.error ? html`<p class="verdict">${live.cause}</p>` : nothing}
    ${names.length > 1
      ? html`<p>${names.join(" and ")} have the same files and share one engine: unloading one unloads all.</p>`
      : nothing}
    <dl class="facts">
      ${fact("Engine", live?.engine)} ${fact("Context", live?.context_length ? plural(live.context_length, "token") : "")}
      ${fact("Parallel requests", live?.slots || "")}
      ${Object.entries(live?.memory ?? {}).map(([pool, { planned, measured }]) =>
        fact(`Memory, ${poolTitle(pool)}`, `${memorySize(planned)} planned, ${memorySize(measured)} measured`),
      )}
      ${fact("Conversations on disk", live?.conversations?.count ? describeKept(live.conversations) : "")}
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
    <h3>${live && live.state !== "failed" ? "Plan" : "Load plan"}</h3>
    ${page.opened.get(name)}
  `;
}

/** @param {ModelRow["conversations"]} kept */
const describeKept = ({ count: kept, size, hits }) => `${count(kept)}, ${fileSize(size)}, restored ${plural(hits, "time")}`;

/** Return what is wrong with a model whose files cannot be read, and what to do. @param {LocalModel} disk @param {ModelsView} page */
export const damage = (disk, page) => html`<div class="verdict bad">
  <p><strong>Its files are damaged:</strong> ${disk.problem ?? "they cannot be read"}.</p>
  <p><strong>To fix it:</strong> delete the model, and download or create it again.</p>
  ${page.readOnly ? nothing : html`<button class="danger" @click=${() => actions.remove(disk.name)}>Delete …</button>`}
</div>`;

/** Return why a model failed, what to do, and where to read more. @param {ModelRow} live */
export function failure(live) {
  const { cause, hint } = /** @type {NonNullable<ModelRow["error"]>} */ (live.error);
  return html`<div class="verdict bad">
    <p><strong>${live.state === "failed" ? "Loading failed" : "Last failure"}:</strong> ${cause}</p>
    ${live.log && hint?.includes("vllama logs") ? nothing : whatHelps(hint)}
    ${live.log ? html`<p><a href=${linkTo("logs", live.log)}>Open the log of the engine</a></p>` : nothing}
  </div>`;
}

/** @param {string} label @param {string | number | null} [value] */
function fact(label, value) {
  if (value === undefined || value === null || value === "") return nothing;
  return html`<div><dt>${label}</dt><dd>${typeof value === "number" ? count(value) : value}</dd></div>`;
}
