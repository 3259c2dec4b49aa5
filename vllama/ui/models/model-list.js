/** The models on the disk as a list: a row each, and below it the details once its name is pressed. */

import { fileSize } from "../format.js";
import { listHolders } from "../live/nodes.js";
import { listSharing } from "../live/state.js";
import { badge } from "../parts/badge.js";
import { linkTo } from "../route.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import * as actions from "./actions.js";
import { details, disclosure, isDamaged } from "./model-details.js";

/**
 * Return the list of `models`: `name`, `disk` (its row of `/api/tags`) and `live` (that of the event
 * stream), either of which may be missing. `page` keeps which are open.
 * @param {Model[]} models @param {ModelsView} page
 */
export function modelList(models, page) {
  return html`<table class="cards models">
    <thead class="hidden">
      <tr>
        <th scope="col">Model</th>
        <th scope="col">State</th>
        <th scope="col">Actions</th>
      </tr>
    </thead>
    <tbody>${repeat(models, ({ name }) => name, (model) => rows(model, page))}</tbody>
  </table>`;
}

/** @param {Model} model @param {ModelsView} page */
function rows(model, page) {
  const { name } = model;
  return html`
    <tr class=${page.opened.has(name) ? "open" : ""} data-model=${name}>
      <th scope="row">${disclosure(name, page)} <small>${describeFiles(model.disk)}</small></th>
      <td>${describeState(model)}</td>
      <td class="actions">${mainActions(model)}</td>
    </tr>
    ${page.opened.has(name)
      ? html`<tr class="details" id="details-${name}"><td colspan="3">${details(model, page)}</td></tr>`
      : nothing}
  `;
}

/** Return the state, nothing for a model that is only there. @param {Model} model */
function describeState({ name, disk, live }) {
  if (live) {
    const others = listSharing(live).filter((other) => other !== name);
    return html`${badge(live.state)} ${others.length ? html`<small>shared with ${others.join(", ")}</small>` : nothing}`;
  }
  const holders = listHolders(name);
  if (holders.length) return html`<small>on ${holders.join(", ")}</small>`;
  return isDamaged(disk) ? badge("damaged") : nothing;
}

/** Return size, parameters and quantization of a model in words. @param {LocalModel} [disk] */
export function describeFiles(disk) {
  const { parameter_size: parameters, quantization_level: quantization } = disk?.details ?? {};
  return [parameters, quantization, disk && fileSize(disk.size)].filter(Boolean).join(" · ");
}

/** Return what one does with a model: chat with it, load or unload it. @param {Model} model */
export function mainActions({ name, disk, live }) {
  const chats = !disk?.capabilities || disk.capabilities.includes("completion");
  const chat = html`<a class="button" aria-label="Chat with ${name}" href=${linkTo("chat", undefined, { model: name })}>Chat</a>`;
  const load = html`<button aria-label="Load ${name}" @click=${() => actions.load(name)}>Load</button>`;
  const unload = html`<button aria-label="Unload ${name}" ?disabled=${live?.state === "stopping"} @click=${() => actions.unload(name)}>Unload</button>`;
  const isLoaded = (live && live.state !== "failed") || listHolders(name).length;
  return html`${isLoaded ? unload : load} ${chats ? chat : nothing}`;
}
