/** The server's settings, as `/api/config` gives them. */

import { ask } from "../server.js";

/** Return the file of the settings ("" if there is none), and all: key, text, source, help of each. */
export const readSettings = () => ask("api/config");

/** Return the value of one setting as text. @param {string} key */
export async function readSetting(key) {
  const { settings } = await readSettings();
  return settings.find((row) => row.key === key)?.text;
}
