/** The requests that have ended: those that the event stream tells, and older ones on demand. */

import { state } from "../live/state.js";
import { ask } from "../server.js";

const MOST = 1000; // the server keeps no more
const STEP = 200;
const TOLD = 100; // in a snapshot of the stream

/** @type {EndedRow[]} */
let rows = []; // newest first
let more = true; // whether the server may have older ones

/** @param {EndedRow} row */
export const identify = (row) => `${row.id} ${row.started_at}`; // clients may use an id twice

/** Return all that are known, newest first. */
export function listEnded() {
  const known = new Set(rows.map(identify));
  const fresh = state.ended.filter((row) => !known.has(identify(row)));
  if (fresh.length && fresh.length === state.ended.length) [rows, more] = [fresh, fresh.length >= TOLD]; // after a gap
  else if (fresh.length) rows = [...fresh, ...rows].slice(0, MOST);
  return rows;
}

/** Tell whether the server may have older ones. */
export const hasMore = () => more && rows.length < MOST;

export async function readOlder() {
  const last = rows.at(-1);
  const before = last ? `&before=${encodeURIComponent(last.id)}` : "";
  const found = await ask(`api/requests/ended?limit=${STEP}${before}`);
  const known = new Set(rows.map(identify));
  const older = found.requests.filter((row) => !known.has(identify(row)));
  more = found.more && older.length > 0;
  rows = [...rows, ...older].slice(0, MOST);
}
