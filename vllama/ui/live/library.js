/** The models on the server's disk; the event stream tells of those that run, and when to ask again. */

import { ask } from "../server.js";
import { changes, state } from "./state.js";

export const library = { models: [], loaded: false };

let running = null;

/** Ask for the list again; views hear of it as the topic "library". */
export function refreshLibrary() {
  running ??= ask("api/tags")
    .then(({ models }) => {
      library.models = models;
      library.loaded = true;
      changes.dispatchEvent(new Event("library"));
    })
    .finally(() => {
      running = null;
    });
  return running;
}

changes.addEventListener("disk", () => refreshLibrary().catch(() => {}));

/**
 * Return the rows of the event stream whose models are here. What could not be loaded from a path,
 * or under a name that the server does not know, is not.
 */
export function listLive() {
  const known = new Set(library.models.map((row) => row.name));
  return [...state.models.values()].filter(({ name, state }) => state !== "failed" || known.has(name));
}

/** Return the names of all models that can be asked, those that run first. */
export function listNames() {
  const running = listLive().map((row) => row.name);
  const others = library.models.map((row) => row.name);
  return [...new Set([...running, ...others])];
}

/** Return what a model can do: "completion", "vision", "tools", "thinking", "embedding", … */
export function listCapabilities(name) {
  return library.models.find((row) => row.name === name)?.capabilities ?? [];
}
