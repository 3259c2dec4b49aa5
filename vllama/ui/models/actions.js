/** What can be done with a model, each with a word to the user about how it went. */

import { refreshLibrary } from "../live/library.js";
import { confirm } from "../parts/dialogs.js";
import { showError, showSuccess } from "../parts/notices.js";
import { ask, readObjects, send } from "../server.js";

const FOREVER = -1;

export const load = (name) => report(ask("api/generate", { model: name }), `${name} is loaded.`);

export const unload = (name) =>
  report(ask("api/generate", { model: name, keep_alive: 0 }), `${name} is being unloaded.`);

export const pin = (name) =>
  report(ask("api/generate", { model: name, keep_alive: FOREVER }), `${name} stays loaded.`);

export const unpin = (name) =>
  report(ask("api/generate", { model: name }), `${name} may be unloaded when it is idle.`);

/** Delete a model after a question. */
export async function remove(name) {
  const sure = await confirm({
    title: `Delete ${name}?`,
    text: "Its files are removed from the server's disk. To have it again, it must be downloaded.",
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

/** Download a model; its progress is told by the event stream. */
export async function pull(name) {
  try {
    const response = await send("api/pull", { method: "POST", body: { model: name } });
    for await (const _ of readObjects(response));
    showSuccess(`${name} is here.`);
  } catch (error) {
    showError(error);
  }
  await refreshLibrary().catch(showError);
}
