/** What can be done with a model, each with a word to the user about how it went. */

import { plural } from "../format.js";
import { readSetting } from "../live/settings.js";
import { refreshNodes } from "../live/nodes.js";
import { findLive, listSharing } from "../live/state.js";
import { confirm } from "../parts/dialogs.js";
import { attempt, showSuccess } from "../parts/notices.js";
import { ask, send } from "../server.js";

const FOREVER = -1;

/** @type {Map<string, AbortController>} */
const loading = new Map(); // names → AbortController of the loads that this page has asked for

/** Load a model, `again` if it is loaded, and wait for it. `options`: Ollama's, such as `num_ctx`. @param {string} name @param {Record<string, unknown>} [options] */
export async function load(name, options, again = false) {
  const abort = new AbortController();
  loading.set(name, abort);
  const begin = again ? ask("api/generate", { model: name, keep_alive: 0 }) : Promise.resolve();
  await report(begin.then(() => ask("api/generate", { model: name, options }, { signal: abort.signal })), `${name} is loaded.`);
  if (loading.get(name) === abort) loading.delete(name);
}

/** Unload a model, and with it all that share its engine. @param {string} name */
export async function unload(name) {
  const live = findLive(name);
  const names = live ? listSharing(live) : [name];
  for (const one of names) loading.get(one)?.abort(); // nobody waits for it any more
  const which = names.length > 1 ? `${names.join(" and ")}, which share one engine,` : name;
  const be = names.length > 1 ? "are" : "is";
  const requests = live ? live.requests + live.ending + live.queued : 0;
  const when = live?.requests || live?.ending ? `unloaded after ${plural(requests, "more request")}` : "being unloaded";
  await report(ask("api/generate", { model: name, keep_alive: 0 }), `${which} ${be} ${when}.`);
}

/** @param {string} name */
export const pin = (name) =>
  report(ask("api/generate", { model: name, keep_alive: FOREVER }), `${name} stays loaded.`);

/** Have a model unloaded again after the time that the server's settings name. @param {string} name */
export const unpin = (name) =>
  report(
    readSetting("keep_alive").then((time) => ask("api/generate", { model: name, keep_alive: time })),
    `${name} is unloaded when idle.`,
  );

/** Delete a model after a question. @param {string} name */
export async function remove(name) {
  const sure = await confirm({
    title: `Delete ${name}?`,
    text: "Its files are removed from the server's disk. To use it again, download or create it again.",
    action: "Delete",
  });
  if (!sure) return;
  await report(send("api/delete", { method: "DELETE", body: { model: name } }), `${name} is deleted.`);
}

/** End a request; its client gets an error. @param {string} id */
export const endRequest = (id) =>
  report(send(`api/requests/${encodeURIComponent(id)}`, { method: "DELETE" }), "The request was stopped.");

/** Send a node no more requests, while its running responses go on, or send it requests again. @param {string} name @param {"drain" | "undrain"} action */
export async function setDrained(name, action) {
  const success = action === "drain" ? "finishes its responses and gets no new requests" : "gets requests again";
  await report(ask(`api/nodes/${encodeURIComponent(name)}/${action}`, {}), `${name} ${success}.`);
  await refreshNodes();
}

/** @param {Promise<unknown>} promise @param {string} success */
const report = (promise, success) => attempt(promise.then(() => showSuccess(success)));

/** Download a model, whether or not this page stays open; the event stream tells how far it is. @param {string} name */
export const pull = (name) =>
  report(ask("api/pull", { model: name, background: true }), `Downloading ${name}.`);

/** Stop a download for all who wait for it; what is here already is kept for the next time. @param {string} name */
export const stopPull = (name) =>
  report(
    send("api/pull", { method: "DELETE", body: { model: name } }),
    `The download of ${name} was stopped; the next one resumes it.`,
  );
