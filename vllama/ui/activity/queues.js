/** Why requests wait: for each model with a queue, what holds it up. */

import { duration, plural, secondsUntil } from "../format.js";
import { findLive, listSharing, state } from "../live/state.js";
import { linkTo } from "../route.js";
import { section } from "../parts/table.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { describeClient } from "./request-table.js";

/** Return the queues under a title, nothing if no request waits. */
export function queues() {
  const cards = queueCards("below");
  return cards.length ? section("Queues", html`<div class="queues">${cards}</div>`) : nothing;
}

/** Return a card for each queue; `place`: where requests can be stopped. */
export const queueCards = (place = "in Activity") => [...groupWaiting().values()].map((waiting) => queue(waiting, place));

/** Return the waiting requests in groups that wait for the same. @returns {Map<string, RequestRow[]>} */
function groupWaiting() {
  const groups = new Map();
  for (const row of state.requests.values()) {
    if (row.state !== "waiting") continue;
    const key = `${findLive(row.model)?.name ?? row.model} ${row.waits_for}`;
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  return groups;
}

/** @param {RequestRow[]} waiting @param {string} place */
function queue(waiting, place) {
  const names = [...new Set(waiting.map((row) => row.model))];
  const longest = Math.max(...waiting.map((row) => -secondsUntil(row.started_at)));
  const [{ model, waits_for: reason }] = waiting;
  return html`<div class="card">
    <h3>${names.join(", ")}</h3>
    <p>
      <strong>${plural(waiting.length, "request")} ${waiting.length === 1 ? "waits" : "wait"}</strong>
      (${waiting.length > 1 ? "the longest " : ""}for ${duration(longest)})${reason ? ` for ${reason}` : nothing}.
      ${explainWait(findLive(model), reason ?? "", waiting.length, place)}
    </p>
  </div>`;
}

/** Say who holds up the requests, and what can be done. @param {ModelRow | undefined} live @param {string} reason @param {number} number @param {string} place */
function explainWait(live, reason, number, place) {
  const blocking = listBlocking(live, reason);
  const log = live?.log && live.state !== "ready" ? html` <a href=${linkTo("logs", live.log)}>See its log</a>.` : nothing;
  if (!blocking.length) return log;
  const loaded = live && live.state === "ready";
  return html`${loaded ? `${describeSlots(live.slots, blocking.length)} in use by` : `Ahead of ${number > 1 ? "them" : "it"}:`}
    ${blocking.map(
      (row, index) => html`${index ? ", " : ""}<strong>${describeClient(row)}</strong> (${row.dialect},
        ${row.model}, for ${duration(-secondsUntil(row.started_at))}, ${plural(row.generated_tokens, "token")} so far)`,
    )}.
    It goes on when ${blocking.length > 1 ? "one of these" : "this"} ends or is stopped ${place}.${log}`;
}

/** Return the running requests that others wait for: of the same engine, or of models that are named. @param {ModelRow | undefined} live @param {string} reason */
function listBlocking(live, reason) {
  const names = listSharing(live);
  return [...state.requests.values()].filter(
    (row) => row.state === "running" && (names.includes(row.model) || reason.includes(row.model)),
  );
}

/** @param {number} slots @param {number} running */
function describeSlots(slots, running) {
  if (slots === 1) return "Its only slot is";
  return running < slots ? `${running} of its ${slots} slots are` : `All its ${slots} slots are`;
}
