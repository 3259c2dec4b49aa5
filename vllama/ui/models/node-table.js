/** The nodes of a cluster: what they have in memory, how busy they are, and what is free. */

import { clock, count, memorySize } from "../format.js";
import { listNodes } from "../live/nodes.js";
import { badge } from "../parts/badge.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { setDrained } from "./actions.js";

/** Return a table with a row for each node, nothing without nodes. */
export function nodeTable() {
  const nodes = listNodes();
  if (!nodes.length) return nothing;
  return html`<section aria-labelledby="nodes-title">
    <h2 id="nodes-title">Nodes <span class="muted">${nodes.length}</span></h2>
    <table class="cards nodes">
      <thead>
        <tr>
          ${["Node", "State", "Loaded"].map((text) => html`<th scope="col">${text}</th>`)}
          ${["Running", "Waiting", "GPU free", "RAM free"].map((text) => html`<th scope="col" class="number">${text}</th>`)}
          <th scope="col"><span class="hidden">Actions</span></th>
        </tr>
      </thead>
      <tbody>${nodes.map(nodeRow)}</tbody>
    </table>
  </section>`;
}

/** @param {NodeRow} row */
function nodeRow(row) {
  const { name, state } = row;
  const isLost = state === "lost";
  /** @param {number} bytes */
  const size = (bytes) => (isLost || !bytes ? "–" : memorySize(bytes));
  return html`<tr data-node=${name}>
    <th scope="row">${name}</th>
    <td data-label="State">${badge(state)} ${describeTrouble(row)}</td>
    <td data-label="Loaded">${row.loaded.join(", ") || "–"}</td>
    <td data-label="Running" class="number">${isLost ? "–" : count(row.running)}</td>
    <td data-label="Waiting" class="number">${isLost ? "–" : count(row.waiting)}</td>
    <td data-label="GPU free" class="number">${size(row.gpu_free)}</td>
    <td data-label="RAM free" class="number">${size(row.ram_free)}</td>
    <td class="actions">
      ${isLost ? nothing : state === "draining"
        ? html`<button aria-label="Undrain ${name}" @click=${() => setDrained(name, "undrain")}>Undrain</button>`
        : html`<button aria-label="Drain ${name}" @click=${() => setDrained(name, "drain")}>Drain</button>`}
    </td>
  </tr>`;
}

/** @param {NodeRow} row */
function describeTrouble({ state, trouble, seen_at: seen }) {
  if (state !== "lost") return nothing;
  return html`<small>${trouble.split("; ")[0]}${seen ? `; last seen at ${clock(seen)}` : ""}</small>`;
}
