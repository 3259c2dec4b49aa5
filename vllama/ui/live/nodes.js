/** The other machines of a cluster, as its head sees them; none elsewhere. */

import { ask } from "../server.js";
import { changes } from "./state.js";

/** @type {NodeRow[]} */
let rows = [];

/** Return the rows of `/api/nodes` at the last look. */
export const listNodes = () => rows;

/** Return the names of the nodes that have a model in memory. @param {string} model */
export const listHolders = (model) => rows.filter((row) => row.loaded.includes(model)).map((row) => row.name);

/** Ask for the nodes again; views hear of it as the topic "nodes". */
export async function refreshNodes() {
  try {
    ({ nodes: rows } = await ask("api/nodes"));
  } catch {
    return; // the frame of the page says that the connection is lost; what is known stays
  }
  changes.dispatchEvent(new Event("nodes"));
}
