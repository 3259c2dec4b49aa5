/** Which models fit this machine, and the memory that is free now: one request for all of them (`/api/fits`). */

import { ask, isForbidden } from "../server.js";
import { library } from "./library.js";
import { changes, state } from "./state.js";

const PAUSE_MS = 300; // several changes are one question

/** @type {Map<string, Schemas["ModelFit"]>} */
let rows = new Map();
/** @type {Schemas["Recommendation"][]} */
let recommended = [];
let asked = ""; // what there was at the last question
let timer = 0;

/** Return how a model fits, undefined if that is not known. @param {string} name */
export const findFit = (name) => rows.get(name);

/** Return well-known models, the largest that fit first; none if that is not known. */
export const listRecommended = () => recommended;

/** Ask again if models or what is loaded have changed; views hear of it as the topic "fits". */
export function refreshFits() {
  clearTimeout(timer);
  timer = setTimeout(refresh, PAUSE_MS);
}

async function refresh() {
  const held = [...state.models.values()].filter((row) => Object.keys(row.memory ?? {}).length);
  const now = JSON.stringify([library.models.map((row) => [row.name, row.digest]), held.map((row) => row.name)]);
  if (!library.loaded || state.connection.status !== "live" || asked === now || asked === "never") return;
  asked = now;
  try {
    const answer = await ask("api/fits");
    rows = new Map(answer.models.map((row) => [row.model, row]));
    recommended = answer.recommended;
    changes.dispatchEvent(new Event("fits"));
  } catch (/** @type {any} */ error) {
    // models are listed without it: for a key that may not see it, or on a server that is older
    asked = isForbidden(error) || error.status === 404 ? "never" : "";
  }
}
