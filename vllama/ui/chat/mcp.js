/**
 * MCP servers, by the streamable HTTP transport (modelcontextprotocol.io, version 2025-06-18). The list of
 * them, with their tokens, stays in this browser and is in no export. This page connects to them itself.
 */

import { changes, state } from "../live/state.js";
import { keep } from "../parts/keep.js";
import { readEvents, ServerError } from "../server.js";

const SERVERS = "mcp-servers"; // in localStorage
const VERSION = "2025-06-18";
const LIMITS = { bytes: 8_000_000, result: 65_536, tools: 200, listMs: 10_000, callMs: 300_000, freshMs: 300_000, retryMs: 10_000 };

/** @type {Map<string, { made: Promise<McpConnection>, since: number, until: number }>} */
const connections = new Map(); // by server, as JSON
/** @type {Set<string>} */
const blocked = new Set(); // origins that the policy of the page does not allow
document.addEventListener("securitypolicyviolation", ({ blockedURI }) => URL.canParse(blockedURI) && blocked.add(new URL(blockedURI).origin));
let requests = 0;

/** @returns {McpServer[]} */
export const listServers = () => JSON.parse(localStorage.getItem(SERVERS) ?? "[]");

/** @param {McpServer[]} servers */
export function storeServers(servers) {
  keep(localStorage, SERVERS, servers.length ? JSON.stringify(servers) : "");
  changes.dispatchEvent(new Event("tools"));
}

/** Connect to all servers, and return each with its tools, or with the problem that it has, such as no answer in time. @returns {Promise<McpState[]>} */
export const connectAll = (patienceMs = LIMITS.listMs) =>
  Promise.all(listServers().map((server) => wait(connect(server), patienceMs).then(
    ({ tools }) => ({ server, tools, problem: "" }),
    (error) => ({ server, tools: [], problem: `cannot use the MCP server “${server.name}”: ${error.name === "TimeoutError" ? "it did not respond in time" : error.message}` }),
  )));

/** Call a tool; return its result as text, also when that is an error. @param {McpServer} server @param {string} name @param {unknown} given @param {AbortSignal} signal */
export async function callTool(server, name, given, signal) {
  const both = AbortSignal.any([signal, AbortSignal.timeout(LIMITS.callMs)]);
  const call = async () => exchange(await connect(server).made, "tools/call", { name, arguments: given }, both);
  try {
    const { content = [], isError } = await call().catch((error) => {
      connections.delete(keyOf(server));
      if (error.status === 404) return call(); // the session has ended, as after a restart
      throw error;
    });
    /** @param {any} block */
    const write = (block) => block.text ?? block.resource?.text ?? `(${block.type}: ${block.mimeType ?? block.uri ?? "not shown"})`;
    const text = (isError ? "The tool failed: " : "") + content.map(write).join("\n");
    return text.length > LIMITS.result ? `${text.slice(0, LIMITS.result)}\n… (the first 64 KB of ${Math.ceil(text.length / 1024)} KB)` : text;
  } catch (error) {
    return `The call failed: ${/** @type {Error} */ (error).message}`;
  }
}

/** @param {McpServer} server */
const keyOf = ({ url, token }) => JSON.stringify([url, token]);

/** Return the connection to a server, or the attempt; its tools are asked for again after a while. @param {McpServer} server */
function connect(server) {
  const known = connections.get(keyOf(server));
  const since = Date.now();
  if (known && since < known.until) return known;
  const made = open(server);
  const connection = { made, since, until: since + LIMITS.freshMs };
  made.catch(() => (connection.until = Date.now() + LIMITS.retryMs));
  connections.set(keyOf(server), connection);
  return connection;
}

/** Return a connection that is made within a time from its beginning. @param {ReturnType<typeof connect>} connection @param {number} patienceMs @returns {Promise<McpConnection>} */
function wait({ made, since }, patienceMs) {
  const late = new DOMException("", "TimeoutError");
  return Promise.race([made, new Promise((_, reject) => setTimeout(reject, since + patienceMs - Date.now(), late))]);
}

/** @param {McpServer} server @returns {Promise<McpConnection>} */
async function open(server) {
  const signal = AbortSignal.timeout(LIMITS.listMs);
  /** @type {McpConnection} */
  const connection = { server, session: "", version: "", tools: [] };
  const clientInfo = { name: "vllama", version: state.version || "0" };
  const { protocolVersion } = await exchange(connection, "initialize", { protocolVersion: VERSION, capabilities: {}, clientInfo }, signal);
  connection.version = protocolVersion;
  await exchange(connection, "notifications/initialized", undefined, signal);
  let cursor;
  do {
    const { tools, nextCursor } = await exchange(connection, "tools/list", { cursor }, signal);
    connection.tools.push(...tools.map(readTool));
    cursor = nextCursor;
  } while (cursor && connection.tools.length < LIMITS.tools);
  return connection;
}

/** Return a tool as this page uses it: what a server sends may be anything. @param {any} tool @returns {McpTool} */
const readTool = ({ name, description = "", inputSchema }) => ({ name: String(name), description: String(description), inputSchema });

/** Send a message and return the result. @param {McpConnection} connection @param {string} method @param {unknown} params @param {AbortSignal} signal @returns {Promise<any>} */
async function exchange(connection, method, params, signal) {
  const { url, token } = connection.server;
  const id = method.startsWith("notifications/") ? undefined : ++requests;
  /** @type {Record<string, string>} */
  const headers = { "content-type": "application/json", accept: "application/json, text/event-stream" };
  if (token) headers.authorization = `Bearer ${token}`;
  if (connection.session) headers["mcp-session-id"] = connection.session;
  if (connection.version) headers["mcp-protocol-version"] = connection.version;
  const body = JSON.stringify({ jsonrpc: "2.0", id, method, params });
  const response = await fetch(url, { method: "POST", headers, body, signal, credentials: "omit", redirect: "error", cache: "no-store" })
    .catch(async (error) => { throw error instanceof TypeError ? new Error(await findCause(url)) : error; });
  if (!response.ok) throw new ServerError(`it returned ${response.status}${response.status === 401 ? ": the token is missing or invalid" : ""}`, response.status);
  connection.session ||= response.headers.get("mcp-session-id") ?? "";
  if (id === undefined) return undefined;
  const { result, error } = await readAnswer(response, id);
  if (error) throw new Error(error.message);
  return result;
}

/** Return the message with an id, of JSON or of an event stream that may have others before it. @param {Response} response @param {number} id */
async function readAnswer({ body, headers }, id) {
  let bytes = 0;
  /** @type {TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>} */
  const limit = new TransformStream({
    transform(chunk, controller) {
      bytes += chunk.length;
      if (bytes > LIMITS.bytes) controller.error(new Error("its response is larger than 8 MB"));
      else controller.enqueue(chunk);
    },
  });
  const limited = new Response(body?.pipeThrough(limit));
  const isStream = headers.get("content-type")?.startsWith("text/event-stream");
  for await (const { data } of isStream ? readEvents(limited) : [{ data: await limited.text() }]) {
    const message = data && JSON.parse(data);
    if (message?.id === id && !message.method) return message;
  }
  throw new Error("its response has no result");
}

/** Return why a request did not reach a server. @param {string} url */
async function findCause(url) {
  const { origin } = new URL(url);
  const isThere = await fetch(url, { mode: "no-cors", credentials: "omit" }).then(() => true, () => false);
  await new Promise((resolve) => setTimeout(resolve, 50)); // what the policy forbids is told by an event
  if (blocked.has(origin)) return `this page may not connect to ${origin}; ask an administrator to add it to the setting mcp_origins`;
  return isThere ? `${origin} does not allow requests from ${location.origin} (CORS); allow that origin in the MCP server` : `cannot reach ${origin}`;
}
