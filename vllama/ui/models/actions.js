/** What can be done with a model, each with a word to the user about how it went. */

import { refreshLibrary } from "../live/library.js";
import { readSetting } from "../live/settings.js";
import { confirm } from "../parts/dialogs.js";
import { showError, showSuccess } from "../parts/notices.js";
import { ask, send } from "../server.js";

const FOREVER = -1;

export const load = (name) => report(ask("api/generate", { model: name }), `${name} is loaded.`);

export const unload = (name) =>
  report(ask("api/generate", { model: name, keep_alive: 0 }), `${name} is being unloaded.`);

export const pin = (name) =>
  report(ask("api/generate", { model: name, keep_alive: FOREVER }), `${name} stays loaded.`);

/** Have a model unloaded again after the time that the server's settings name. */
export const unpin = (name) =>
  report(
    readSetting("keep_alive").then((time) => ask("api/generate", { model: name, keep_alive: time })),
    `${name} may be unloaded when it is idle.`,
  );

/** Delete a model after a question. */
export async function remove(name) {
  const sure = await confirm({
    title: `Delete ${name}?`,
    text: "Its files are removed from the server's disk. To have it again, download it or create it again.",
    action: "Delete",
  });
  if (!sure) return;
  await report(send("api/delete", { method: "DELETE", body: { model: name } }), `${name} is deleted.`);
  await refreshLibrary().catch(showError);
}

/** End a request; its client gets an error. */
export const endRequest = (id) =>
  report(send(`api/requests/${encodeURIComponent(id)}`, { method: "DELETE" }), "The request was ended.");

async function report(promise, success) {
  try {
    await promise;
    showSuccess(success);
  } catch (error) {
    showError(error);
  }
}

/** Download a model, whether or not this page stays open; the event stream tells how far it is. */
export const pull = (name) =>
  report(ask("api/pull", { model: name, background: true }), `The download of ${name} has begun.`);

/** Stop a download for all who wait for it; what is here already is kept for the next time. */
export const stopPull = (name) =>
  report(
    send("api/pull", { method: "DELETE", body: { model: name } }),
    `The download of ${name} was stopped; it goes on from there the next time.`,
  );
