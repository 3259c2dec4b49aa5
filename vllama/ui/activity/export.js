/** Requests that have ended as a file, with the fields of `/api/requests/ended`. */

import { download } from "../parts/download.js";

/** @param {EndedRow[]} rows */
export const saveJson = (rows) => download(JSON.stringify(rows, null, 2), "application/json", "requests.json");

/** Save them as a table (RFC 4180), its first line the names. @param {EndedRow[]} rows */
export function saveCsv(rows) {
  const names = /** @type {(keyof EndedRow)[]} */ (Object.keys(rows[0] ?? {}));
  const lines = [names, ...rows.map((row) => names.map((name) => row[name]))].map((values) => values.map(quote).join(","));
  download(lines.map((line) => `${line}\r\n`).join(""), "text/csv", "requests.csv");
}

/** Quote a value; a text that a spreadsheet would run as a formula is marked as text. @param {unknown} value */
function quote(value) {
  if (typeof value !== "string") return String(value ?? "");
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
