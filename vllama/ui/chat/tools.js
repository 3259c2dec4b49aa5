/** Tools of MCP servers in conversations: which a model is offered, what the user allows, and their results. */

import { isAble } from "../live/library.js";
import { keep } from "../parts/keep.js";
import { showError } from "../parts/notices.js";
import { makeMessage, makeStream } from "./answer.js";
import { callTool, connectAll, listServers } from "./mcp.js";

const ALLOWED = "mcp-allowed"; // in localStorage: [conversation, tool] of the newest "always"
const MOST_ALLOWED = 200;
const PATIENCE_MS = 2000; // of a message, with a server that does not answer: its tools come with a later one

/** What is asked of the user, or called, for an answer that is being written. @type {Map<string, ToolQuestion>} */
export const pending = new Map();

/** Return those calls that are for MCP servers: the results of other tools, the user enters. @param {ToolCall[]} calls @param {string} own the user's tools, as JSON */
export const listAutomatic = (calls, own) => (listServers().length ? calls.filter((call) => !readNames(own).includes(call.function.name)) : []);

/** Return the calls of the last message of a model that have no result yet. @param {Message[]} messages */
export function listOpen(messages) {
  const asking = messages.findLastIndex(({ role }) => role === "assistant");
  const given = messages.slice(asking + 1).map((message) => message.tool_name);
  return (messages[asking]?.tool_calls ?? []).filter(({ function: { name } }) => !given.includes(name) || !given.splice(given.indexOf(name), 1));
}

/** Return how a tool is known to a conversation. @param {McpServer} server @param {McpTool} tool */
export const nameTool = (server, { name }) => `${server.name}: ${name}`;

/** @param {string} own @returns {string[]} */
const readNames = (own) => (own ? JSON.parse(own) : []).map((/** @type {any} */ tool) => tool.function?.name);

/** Return the tools that a model is offered, by the names that it sees. @param {string} model @param {ChatValues} values */
export async function findTools(model, { tools: own, off = [] }) {
  /** @type {Map<string, McpChoice>} */
  const found = new Map();
  if (!isAble(model, "tools")) return found;
  const taken = readNames(own);
  for (const { server, tools, problem } of await connectAll(PATIENCE_MS)) {
    if (problem) showError(new Error(problem));
    for (const tool of tools.filter((one) => !off.includes(nameTool(server, one)))) {
      const plain = tool.name.replace(/[^\w-]/g, "_").slice(0, 60);
      let name = plain;
      for (let number = 2; found.has(name) || taken.includes(name); number++) name = `${plain}_${number}`;
      found.set(name, { server, tool });
    }
  }
  return found;
}

/**
 * Call what the last message of an answer asks for, once the user allows it, and add the results and an
 * empty message to the answer. Return false if the user has to enter other results, or has stopped it.
 * @param {AnswerRecord} answer @param {ChatValues} values @param {{ signal: AbortSignal, onChange: () => void }} options
 */
export async function useTools(answer, values, { signal, onChange }) {
  const calls = listAutomatic(listOpen(answer.messages), values.tools);
  if (!calls.length) return false;
  const tools = await findTools(answer.model, values);
  const results = [];
  for (const { function: { name, arguments: given } } of calls) {
    const choice = tools.get(name);
    const isAllowed = choice && !signal.aborted && (await ask(answer, name, choice, signal, onChange));
    if (isAllowed) pending.set(answer.id, { name, ...choice });
    onChange();
    const refusal = choice ? "The user denied this call." : `No such tool: “${name}”.`;
    const content = isAllowed ? await callTool(choice.server, choice.tool.name, given, signal) : refusal;
    results.push({ role: "tool", tool_name: name, content });
    pending.delete(answer.id);
  }
  if (signal.aborted) return false;
  answer.messages.push(...results);
  if (listOpen(answer.messages).length) return false;
  answer.messages.push(makeMessage());
  answer.stream = makeStream();
  onChange();
  return true;
}

/** Ask whether a tool may be called, unless this very tool was allowed. @param {AnswerRecord} answer @param {string} name @param {McpChoice} choice @param {AbortSignal} signal @param {() => void} onChange */
async function ask({ id, conversation }, name, { server, tool }, signal, onChange) {
  const entry = JSON.stringify([conversation, server.url, tool]); // with its description: if that changes, it is another tool
  /** @type {string[]} */
  const allowed = JSON.parse(localStorage.getItem(ALLOWED) ?? "[]");
  if (allowed.includes(entry)) return true;
  /** @type {string} */
  const decision = await new Promise((decide) => {
    signal.addEventListener("abort", () => decide("deny"));
    pending.set(id, { name, server, tool, decide });
    onChange();
  });
  if (decision === "always") keep(localStorage, ALLOWED, JSON.stringify([...allowed, entry].slice(-MOST_ALLOWED)));
  pending.delete(id);
  return decision !== "deny";
}
