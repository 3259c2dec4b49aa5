/** The nodes of a cluster: what they have in memory, how busy they are, and what is free. */

import { clock, count, memorySize } from "../format.js";
import { listNodes } from "../live/nodes.js";
import { badge } from "../parts/badge.js";
import { section, table } from "../parts/table.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { setDrained } from "./actions.js";

/** Return a table with a row for each node, nothing without nodes. */
export function nodeTable() {
  const nodes = listNodes();
  if (!nodes.length) return nothing;
  return section("Nodes", table("cards nodes", COLUMNS, nodes, { key: ({ name }) => name }), nodes.length);
}

/** @type {Column<NodeRow>[]} */
const COLUMNS = [
  ["Node", ({ name }) => name],
  ["State", (row) => html`${badge(row.state)} ${describeTrouble(row)}`],
  ["Loaded", ({ loaded }) => loaded.join(", ") || "–"],
  ["Running", (row) => (isLost(row) ? "–" : count(row.running)), "number"],
  ["Waiting", (row) => (isLost(row) ? "–" : count(row.waiting)), "number"],
  ["GPU free", (row) => (isLost(row) || !row.gpu_free ? "–" : memorySize(row.gpu_free)), "number"],
  ["RAM free", (row) => (isLost(row) || !row.ram_free ? "–" : memorySize(row.ram_free)), "number"],
  ["Actions", drainButton, "actions"],
];

/** @param {NodeRow} row */
const isLost = ({ state }) => state === "lost";

/** @param {NodeRow} row */
function drainButton({ name, state }) {
  if (state === "lost") return nothing;
  const action = state === "draining" ? "undrain" : "drain";
  const word = state === "draining" ? "Undrain" : "Drain";
  return html`<button aria-label="${word} ${name}" @click=${() => setDrained(name, action)}>${word}</button>`;
}

/** @param {NodeRow} row */
function describeTrouble({ state, trouble, seen_at: seen }) {
  if (state !== "lost") return nothing;
  return html`<small>${trouble.split("; ")[0]}${seen ? `; last seen at ${clock(seen)}` : ""}</small>`;
}
