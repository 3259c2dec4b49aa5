/** How fast a download is, by what its row has said in the last seconds. */

import { duration, fileSize } from "../format.js";

const WINDOW_S = 10;
const LEAST_S = 1;

/** @type {Map<string, { at: number, completed: number, total: number }[]>} */
const history = new Map(); // names → what was seen, oldest first

/** Return speed and time left as text, "" until they are known; to be called for every rendering. @param {PullRow} row */
export function describePace({ name, completed, total }) {
  const now = performance.now() / 1000;
  let seen = (history.get(name) ?? []).filter(({ at }) => at > now - WINDOW_S);
  // another file has begun, perhaps with what an earlier download has left of it
  if (seen.some((before) => before.total !== total)) seen = [];
  seen.push({ at: now, completed, total });
  history.set(name, seen);
  const seconds = now - seen[0].at;
  const perS = (completed - seen[0].completed) / seconds;
  if (seconds < LEAST_S || !(perS > 0)) return "";
  return `, ${fileSize(perS)}/s, ${duration((total - completed) / perS)} left`;
}
