/** The machine as it is now: each memory with the models in it, how fast they generate, and who waits for what. */

import { queueCards } from "../activity/queues.js";
import { plural, rate } from "../format.js";
import { rateNow } from "../live/rates.js";
import { listSharing, state } from "../live/state.js";
import { memoryBar } from "../parts/memory-bar.js";
import { linkTo } from "../route.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

const TONES = [0, 1, 2, 3, 4, 5];
/** @type {Map<string, number>} */
const tones = new Map(); // names of models in memory → their colors, which stay until they are unloaded

/** Return the color of a model. @param {ModelRow} row */
export function toneOf({ name }) {
  for (const one of tones.keys()) if (!state.models.has(one)) tones.delete(one);
  const used = [...tones.values()];
  if (!tones.has(name)) tones.set(name, TONES.find((tone) => !used.includes(tone)) ?? used.length % TONES.length);
  return /** @type {number} */ (tones.get(name));
}

/** Return the picture of the machine, nothing before the first sample. */
export function machine() {
  const pools = Object.entries(state.samples.at(-1)?.memory ?? {});
  if (!pools.length) return nothing;
  const requests = [...state.requests.values()];
  const waiting = requests.filter((row) => row.state === "waiting").length;
  const now = rateNow(requests.map((row) => row.model));
  return html`<section class="machine card" aria-labelledby="machine-title">
    <h2 id="machine-title" class="hidden">This machine</h2>
    <div class="pools">${pools.sort(([a], [b]) => Number(a === "ram") - Number(b === "ram")).map(([name, pool]) => poolBar(name, pool))}</div>
    <div class="pulse">
      <p class="speed">${now || requests.length ? html`<strong>${rate(now)}</strong> tokens/s` : html`<strong class="muted">Idle</strong>`}</p>
      <p class="muted">
        ${requests.length
          ? html`<a href=${linkTo("activity")}>${plural(requests.length - waiting, "request")} running, ${waiting} waiting</a>`
          : "No requests are running."}
      </p>
      ${queueCards()}
    </div>
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
  const names = listSharing(row);
  const now = rateNow(names);
  const note = now ? `${rate(now)} tokens/s` : "";
  const tone = toneOf(row);
  const label = names.join(", ") + (measured ? "" : " (planned)");
  return { label, bytes: measured || planned, kind: measured ? "model" : "plan", tone, note };
}
