/** A model whose engine runs, as a card: how fast it generates now, what it takes, and what it does. */

import { duration, memorySize, rate, secondsUntil } from "../format.js";
import { lastRate, rateNow } from "../live/rates.js";
import { listSharing, state } from "../live/state.js";
import { badge } from "../parts/badge.js";
import { loadProgress } from "../parts/load-progress.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { details, disclosure } from "./model-details.js";
import { poolTitle, toneOf } from "./memory-overview.js";
import { describeFiles, mainActions } from "./model-list.js";

/** Return the card of a model with a row of the event stream, `live`; `page` keeps which are open. @param {Model} model @param {ModelsView} page */
export function runningCard(model, page) {
  const { name, disk } = model;
  const live = /** @type {ModelRow} */ (model.live); // see isRunning
  const others = listSharing(live).filter((other) => other !== name);
  const tone = toneOf(live);
  const isOpen = page.opened.has(name);
  return html`<article class="card running-model ${isOpen ? "open" : ""}" data-model=${name} aria-label=${name}>
    <header class="row">
      <h3 class="grow">${disclosure(name, page)}</h3>
      ${badge(live.state)}
    </header>
    <p class="muted">${[live.engine, describeFiles(disk)].filter(Boolean).join(" · ")}</p>
    ${others.length ? html`<p class="muted">shared with ${others.join(", ")}</p>` : nothing}
    ${live.load ? html`<p>${loadProgress(name, live.load)}</p>` : speed(live)}
    ${live.placement ? html`<p class="muted">${live.placement}</p>` : nothing}
    ${Object.entries(live.memory ?? {}).map(([pool, bytes]) => share(pool, bytes, tone))}
    <dl class="facts">
      <div><dt>Requests</dt><dd>${describeRequests(live)}</dd></div>
      <div><dt>Unloads</dt><dd>${describeExpiry(live)}</dd></div>
    </dl>
    <div class="row actions">${mainActions(model)}</div>
    ${isOpen ? html`<div class="details" id="details-${name}">${details(model, page)}</div>` : nothing}
  </article>`;
}

/** @param {ModelRow} live */
function speed(live) {
  const names = listSharing(live);
  const last = lastRate(names);
  if (live.requests) return html`<p class="speed"><strong>${rate(rateNow(names))}</strong> tokens/s now</p>`;
  return html`<p class="speed muted">${last ? html`<strong>${rate(last)}</strong> tokens/s, last response` : "No response yet"}</p>`;
}

/** Return what it takes of a pool, in words and as a bar of the whole. @param {string} pool @param {ModelRow["memory"][string]} use @param {number} tone */
function share(pool, { planned, measured }, tone) {
  const bytes = measured || planned;
  const total = state.samples.at(-1)?.memory[pool]?.total;
  if (!bytes) return nothing;
  return html`<div class="share">
    <span>${poolTitle(pool)}</span>
    <span>${memorySize(bytes)}${measured ? "" : " planned"}${total ? ` of ${memorySize(total)}` : ""}</span>
    <i aria-hidden="true"><i class="model tone-${tone}" .style=${`width:${total ? (100 * bytes) / total : 0}%`}></i></i>
  </div>`;
}

/** @param {ModelRow} live */
function describeRequests(live) {
  const slots = live.slots ? ` of ${live.slots}` : "";
  const waiting = live.queued ? html`, <strong>${live.queued} waiting</strong>` : nothing;
  const ending = live.ending ? html`<small>${live.ending} ending on its previous engine</small>` : nothing;
  return html`${live.requests}${slots} running${waiting} ${ending}`;
}

/** @param {ModelRow} live */
function describeExpiry(live) {
  if (live.pinned) return "never (pinned)";
  if (!live.expires_at) return "when idle";
  const left = secondsUntil(live.expires_at);
  return left > 0 ? `in ${duration(left)}` : "now";
}
