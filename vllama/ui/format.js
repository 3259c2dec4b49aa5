/** Numbers, sizes, times and JSON as text. A value that is not known is shown as a dash. */

const DASH = "–";
const DECIMAL = ["B", "kB", "MB", "GB", "TB"];
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB"];

/** @type {(value: unknown) => value is number} */
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** @param {unknown} bytes @param {number} base @param {string[]} units */
function scale(bytes, base, units) {
  if (!known(bytes)) return DASH;
  let value = bytes;
  let unit = 0;
  while (value >= base && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  return `${value.toFixed(value < 10 && unit > 1 ? 1 : 0)} ${units[unit]}`;
}

/** Files and downloads, in powers of 1000. @param {number | null} [bytes] */
export const fileSize = (bytes) => scale(bytes, 1000, DECIMAL);

/** Memory, in powers of 1024. @param {number | null} [bytes] */
export const memorySize = (bytes) => scale(bytes, 1024, BINARY);

/** A length of context, in powers of 1024: "8K", "1M". @param {number} tokens */
export const contextLength = (tokens) => scale(tokens, 1024, ["", "K", "M"]).replace(" ", "");

/** @param {number | null} [value] */
export const count = (value) => (known(value) ? value.toLocaleString("en") : DASH);

/** @param {number | null} [value] */
export const rate = (value) =>
  known(value) && value < 100 ? value.toFixed(1) : count(value && Math.round(value));

/** A duration in seconds: "0.21 s", "14 s", "3 min 5 s", "2 h 4 min". @param {number | null} [seconds] */
export function duration(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** A time of day, of Unix seconds or of a text such as RFC 3339. @param {number | string | null} time */
export function clock(time) {
  const date = new Date(typeof time === "number" ? time * 1000 : (time ?? ""));
  return Number.isNaN(date.getTime()) ? DASH : date.toLocaleTimeString("en-GB");
}

/** Seconds from now until a time (negative: it has passed), of Unix seconds or of a text. @param {number | string} time */
export function secondsUntil(time) {
  return (typeof time === "number" ? time : Date.parse(time) / 1000) - Date.now() / 1000;
}

/** JSON in lines that can be read, and any other text unchanged. @param {string} text */
export function indent(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {number} number @param {string} noun */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
