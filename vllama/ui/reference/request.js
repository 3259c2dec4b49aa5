/** One request of the reference: its address, its command line, and its answer as it arrives. */

import { indent } from "../format.js";
import { BASE, readKey, readPieces } from "../server.js";

/** Return the address of an operation with the values of its parameters. @param {Operation} operation @param {Record<string, string>} values */
export function makeUrl(operation, values) {
  const path = operation.path.replace(/\{(\w+)\}/g, (_, name) =>
    encodeURIComponent(values[name] ?? "").replaceAll("%2F", "/").replaceAll("%3A", ":"),
  );
  const url = new URL(path.slice(1), BASE);
  for (const { name, in: where } of operation.parameters ?? []) {
    if (where === "query" && values[name]) url.searchParams.set(name, values[name]);
  }
  return url;
}

/** Return the same request as a command; a key is never part of it. @param {Operation} operation @param {URL} url @param {string} body */
export function makeCommand(operation, url, body) {
  /** @param {string} text */
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const method = operation.method.toUpperCase();
  const words = ["curl"];
  if (method === "HEAD") words.push("--head");
  else if (method !== (body ? "POST" : "GET")) words.push("-X", method);
  if (readKey()) words.push("-H", '"Authorization: Bearer $OLLAMA_API_KEY"');
  words.push(quote(url.href));
  if (body) words.push("-d", quote(body));
  return words.join(" ");
}

/**
 * Send a request, and call `show` with the text of the answer so far whenever there is more.
 *
 * Returns its status, type and duration in seconds. Throws what fetch throws.
 * @param {Operation} operation @param {URL} url @param {string} body @param {AbortSignal} signal
 * @param {(text: string) => void} show
 */
export async function sendRequest(operation, url, body, signal, show) {
  /** @type {Record<string, string>} */
  const headers = {};
  if (readKey()) headers.authorization = `Bearer ${readKey()}`;
  if (body) headers["content-type"] = "application/json";
  const began = performance.now();
  const response = await fetch(url, {
    method: operation.method.toUpperCase(),
    headers,
    body: body || undefined,
    signal,
    cache: "no-store",
  });
  const type = response.headers.get("content-type") ?? "";
  let text = "";
  for await (const piece of readPieces(response)) {
    text += piece;
    show(text);
  }
  if (type.startsWith("application/json")) text = indent(text);
  return { status: response.status, type, text, seconds: (performance.now() - began) / 1000 };
}
