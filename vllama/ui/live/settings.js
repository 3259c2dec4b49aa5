/** The server's settings, as `/api/config` gives them. */

import { ask } from "../server.js";

/** Return all settings: name, value, source and help of each. */
export async function readSettings() {
  const { settings } = await ask("api/config");
  return settings;
}

/** Return the value of one setting, undefined if there is none of that name. */
export async function readSetting(name) {
  const settings = await readSettings();
  return settings.find((row) => row.name === name)?.value;
}
