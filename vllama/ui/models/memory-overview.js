/** The memory of each pool (RAM, GPUs) now: what models and other programs use, and what is free. */

import { latestSample, listSharing, state } from "../live/state.js";
import { memoryBar } from "../parts/memory-bar.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

/** Return a bar for each pool, nothing before the first sample. */
export function memoryOverview() {
  const pools = Object.entries(latestSample()?.memory ?? {});
  if (!pools.length) return nothing;
  return html`<section aria-labelledby="memory-title">
    <h2 id="memory-title">Memory</h2>
    <div class="pools">${pools.map(([name, pool]) => poolBar(name, pool))}</div>
  </section>`;
}

/** Return a pool's name as people write it. @param {string} name */
export const poolTitle = (name) => (name === "ram" ? "RAM" : name.toUpperCase().replace(/[-_:]/, " "));

/** @param {string} name @param {Sample["memory"][string]} pool */
function poolBar(name, pool) {
  const parts = [...state.models.values()]
    .filter((row) => row.memory?.[name])
    .map((row) => modelPart(row, row.memory[name]));
  const models = parts.reduce((bytes, part) => bytes + part.bytes, 0);
  const other = Math.max(0, pool.total - pool.free - models);
  return memoryBar({
    title: poolTitle(name),
    totalBytes: pool.total,
    parts: [...parts, { label: "other programs and reserve", bytes: other, kind: "other" }],
    freeBytes: pool.free,
  });
}

/** @param {ModelRow} row @param {ModelRow["memory"][string]} use @returns {MemoryPart} */
function modelPart(row, { planned, measured }) {
  const names = listSharing(row).join(", ");
  return measured
    ? { label: names, bytes: measured, kind: "model" }
    : { label: `${names} (planned)`, bytes: planned, kind: "plan" };
}
