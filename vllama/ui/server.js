/**
 * Requests to the server that this page came from.
 *
 * All addresses are relative to the page, so that it works behind a proxy that adds a path. A server
 * with keys answers 401: then the key is asked for once, and the request is repeated with it.
 */

export const BASE = new URL("../", document.baseURI);
const encoder = new TextEncoder();
const KEY = "vllama-key"; // in sessionStorage: it is forgotten with the tab

/** @type {(wasRefused: boolean) => Promise<string | null>} */
let promptForKey = async () => null;
/** @type {Promise<string | null> | null} */
let prompting = null;
/** @type {Promise<Response> | null} */
let first = null; // the first request without a key: what others wait for, because it may ask for one

/** An answer with a status of 400 or more, or an error within a stream. */
export class ServerError extends Error {
  /** @param {string} message */
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** The server could not be reached, or the connection was lost. */
export class Unreachable extends Error {}

/** Return the key that the user has given, null if there is none. */
export const readKey = () => sessionStorage.getItem(KEY);

/** Keep a key for the requests of this tab; an empty one is forgotten. @param {string} key */
export function storeKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** Set the function that asks the user for a key; it is told whether one was refused. @param {typeof promptForKey} prompt */
export function setKeyPrompt(prompt) {
  promptForKey = prompt;
}

/** Send a request and return the Response. Throws ServerError, or Unreachable without a connection. @param {string} path @param {RequestOptions} options */
export async function send(path, options = {}) {
  if (readKey()) return exchange(path, options);
  if (!first) {
    first = exchange(path, options);
    first.catch(() => (first = null));
    return first;
  }
  await first.catch((error) => {
    if (error.status === 401) throw error; // the user has closed the question, for all of them
  });
  return exchange(path, options);
}

/** @param {string} path @param {RequestOptions} options @returns {Promise<Response>} */
async function exchange(path, { method = "GET", body, signal, headers: more } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    /** @type {Record<string, string>} */
    const headers = { ...more };
    if (key) headers.authorization = `Bearer ${key}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const content = body === undefined ? undefined : JSON.stringify(body);
    const init = /** @type {const} */ ({ method, headers, signal, body: content, cache: "no-store" });
    const response = await reach(takeEarly(path) ?? fetch(new URL(path, BASE), init));
    if (response.ok) return response;
    if (response.status === 401 && (await renewKey(key))) continue;
    throw new ServerError(readError(await reach(response.text()), response.status), response.status);
  }
}

/**
 * Wait for the network. The browser throws a TypeError where that fails, and scripts do where they do.
 * @template Result @param {Promise<Result>} work @returns {Promise<Result>}
 */
export async function reach(work) {
  try {
    return await work;
  } catch (error) {
    if (error instanceof TypeError) {
      throw new Unreachable("cannot reach the server: the connection failed; is it still running?", { cause: error });
    }
    throw error;
  }
}

/** Return the answer to the request that first.js has sent, once. @param {string} path */
function takeEarly(path) {
  const { early } = globalThis;
  if (early?.path !== path) return undefined;
  delete globalThis.early;
  return early.answer;
}

/**
 * GET, or POST `body`, and return the JSON of the answer.
 * @template {string} Path @param {Path} path @param {unknown} [body] @param {RequestOptions} options
 * @returns {Promise<Answer<Path>>}
 */
export async function ask(path, body, options = {}) {
  const method = body === undefined ? "GET" : "POST";
  const response = await send(path, { method, body, ...options });
  const text = await reach(response.text());
  try {
    return JSON.parse(text || "{}");
  } catch {
    throw new ServerError(`cannot read the response to ${path}: it is not JSON; a proxy may be responding instead of the server`);
  }
}

/** Yield the text of an answer as it arrives. @param {Response} response @returns {AsyncGenerator<string>} */
export async function* readPieces({ body }) {
  if (!body) return; // as of HEAD
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reach(reader.read());
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // the reader may have been left before the end
  }
}

/** Yield the lines of an answer as they arrive. @param {Response} response @returns {AsyncGenerator<string>} */
export async function* readLines(response) {
  let rest = "";
  for await (const piece of readPieces(response)) {
    const lines = (rest + piece).split("\n");
    rest = /** @type {string} */ (lines.pop());
    yield* lines;
  }
  if (rest) yield rest;
}

/** Yield the server-sent events of an answer; comments have no data. @param {Response} response @returns {AsyncGenerator<{ name: string, data: string }>} */
export async function* readEvents(response) {
  let event = { name: "message", data: "" };
  for await (const line of readLines(response)) {
    if (line.startsWith("event:")) event.name = line.slice(6).trim();
    else if (line.startsWith("data:")) event.data += line.slice(5).trim();
    else if (line.trim() === "") {
      yield event;
      event = { name: "message", data: "" };
    }
  }
}

/**
 * Yield the objects of an answer of JSON lines. Throws ServerError for one that is an error. The bytes
 * of each line are added to `place.at`.
 * @param {Response} response @param {{ at: number }} place
 */
export async function* readObjects(response, place) {
  for await (const line of readLines(response)) {
    place.at += encoder.encode(line).length + 1;
    if (!line.trim()) continue;
    const value = JSON.parse(line);
    if (value.error) throw new ServerError(readError(line));
    yield value;
  }
}

/** Tell whether an error is a mistake in the web UI: what it throws on purpose has other classes. @param {unknown} error */
const isMistake = (error) => [TypeError, ReferenceError, RangeError, SyntaxError].some((kind) => error instanceof kind);

/** Tell whether the user has given no key, though the server wants one. @param {unknown} error */
export const isLocked = (error) => error instanceof ServerError && error.status === 401;

/** Tell whether the server knows the key, and its scopes do not allow what was asked. @param {unknown} error */
export const isForbidden = (error) => error instanceof ServerError && error.status === 403;

/** Return what to show of something that was thrown. @param {any} error */
export function explain(error) {
  if (isLocked(error)) return "the server requires a key";
  if (error?.name === "AbortError") return "stopped";
  const message = error?.message ?? String(error);
  if (error instanceof DOMException) return `the browser rejected it: ${message}`;
  return isMistake(error) ? `the web UI failed: ${message}; reload the page, and report this if it happens again` : message;
}

/** Ask for a key, together with all other requests that were refused. False: none was given. @param {string | null} refused */
async function renewKey(refused) {
  if (refused !== sessionStorage.getItem(KEY)) return true; // another request has renewed it
  prompting ??= promptForKey(Boolean(refused)).finally(() => (prompting = null));
  const key = await prompting;
  if (key === null) return false;
  sessionStorage.setItem(KEY, key);
  return true;
}

/** Tell whether a hint names commands, flags or variables: it is for whoever uses the terminal. @param {string} hint */
export const isForTerminal = (hint) => /\b(vllama|pip|sudo|chmod) [a-z]|--[a-z]|\b[A-Z]+_[A-Z_]+/.test(hint);

/** Return a message of the server's without the hints in it that are for the terminal. @param {string} text */
export const forBrowser = (text) =>
  text.split("; ").filter((part, index) => index === 0 || !isForTerminal(part)).join("; ");

/** Return the text of an error that the server has answered. @param {string} text @param {number} [status] */
function readError(text, status) {
  try {
    const { error } = JSON.parse(text);
    return forBrowser((typeof error === "string" ? error : error?.message) || text);
  } catch {
    return text || `the server returned ${status}`;
  }
}
