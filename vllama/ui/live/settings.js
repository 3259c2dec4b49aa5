/** The server's settings, as `/api/config` gives them. */

import { ask } from "../server.js";

/** Return the value of one setting as text. @param {string} key */
export async function readSetting(key) {
  const { settings } = await ask("api/config");
  return settings.find((row) => row.key === key)?.text;
}
