/** The models on the server's disk; the event stream tells of those that run, and when to ask again. */

import { keep } from "../parts/keep.js";
import { ask, isLocked, readKey } from "../server.js";
import { changes, state } from "./state.js";

/** The answer is kept, so that the next visit begins with it; behind a key for this tab only. */
const KEPT = "models";
const findStorage = () => (readKey() ? sessionStorage : localStorage);
const kept = findStorage().getItem(KEPT);

/** `loaded`: the list came from the server just now, not from the last visit. @type {{ models: LocalModel[], loaded: boolean }} */
export const library = { models: kept ? JSON.parse(kept).models : [], loaded: false };

/** @type {Promise<void> | null} */
let running = null;

/** Ask for the list again; views hear of it as the topic "library". */
export function refreshLibrary() {
  running ??= ask("api/tags")
    .then(
      ({ models }) => {
        library.models = models;
        library.loaded = true;
        keep(findStorage(), KEPT, JSON.stringify({ models }));
        changes.dispatchEvent(new Event("library"));
      },
      (error) => {
        if (isLocked(error)) {
          localStorage.removeItem(KEPT); // of the time before the server had keys
          Object.assign(library, { models: [], loaded: false });
          changes.dispatchEvent(new Event("library"));
        }
        throw error;
      },
    )
    .finally(() => (running = null));
  return running;
}

// a list that is under way may be from before the change
changes.addEventListener("disk", () =>
  Promise.resolve(running)
    .catch(() => {})
    .then(refreshLibrary)
    .catch(() => {}),
);

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

/** Tell whether a model is able to do something, or may be: not of all is it known. @param {string} name @param {string} capability "completion", "vision", "tools", … */
export function isAble(name, capability) {
  const { capabilities = [] } = library.models.find((row) => row.name === name) ?? {};
  return !capabilities.length || capabilities.includes(capability);
}
