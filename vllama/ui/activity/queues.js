/** Why requests wait: for each model with a queue, what holds it up. */

import { duration, plural, secondsUntil } from "../format.js";
import { state } from "../live/state.js";
import { linkTo } from "../route.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { describeClient } from "./request-table.js";

/** Return a card for each queue, nothing if no request waits. */
export function queues() {
  const waiting = groupWaiting();
  if (!waiting.size) return nothing;
  return html`<section aria-labelledby="queues-title">
    <h2 id="queues-title">What waits, and for what</h2>
    ${[...waiting].map(([model, rows]) => queue(model, rows))}
  </section>`;
}

/** Return the waiting requests by their model. */
function groupWaiting() {
  const groups = new Map();
  for (const row of state.requests.values()) {
    if (row.state === "waiting") groups.set(row.model, [...(groups.get(row.model) ?? []), row]);
  }
  return groups;
}

function queue(name, waiting) {
  const running = [...state.requests.values()].filter(
    (row) => row.model === name && row.state === "running",
  );
  const longest = Math.max(...waiting.map((row) => -secondsUntil(row.started_at)));
  return html`<div class="card">
    <h3>${name}</h3>
    <p>
      <strong>${plural(waiting.length, "request")} ${waiting.length === 1 ? "waits" : "wait"}</strong>,
      the longest for ${duration(longest)}. ${explainWait(name, running)}
    </p>
  </div>`;
}

function describeSlots(model, running) {
  const slots = model?.slots ?? running.length;
  if (slots === 1) return "Its only slot is";
  return running.length < slots ? `${running.length} of its ${slots} slots are` : `All its ${slots} slots are`;
}

/** Say what the requests to a model wait for, as far as the server has told. */
function explainWait(name, running) {
  const model = state.models.get(name);
  if (running.length) {
    return html`${describeSlots(model, running)} in use by
    ${running.map(
      (row, index) => html`${index ? ", " : ""}<strong>${describeClient(row)}</strong> (${row.dialect},
        for ${duration(-secondsUntil(row.started_at))}, ${plural(row.tokens, "token")} so far)`,
    )}.
    The next request starts when one of these ends or is stopped below.`;
  }
  if (!model) return "The model is not loaded yet.";
  if (model.cause) return html`The model is ${model.state}: ${model.cause}.`;
  const log = model.log
    ? html` (<a href=${linkTo("logs", model.log)}>see its log</a>)`
    : nothing;
  return html`The model is ${model.state}${log}.`;
}
