/** One answer of a model: the request of `/api/chat`, and the message that grows while it arrives. */

import { keep } from "../parts/keep.js";
import { explain, readObjects, send, ServerError, Unreachable } from "../server.js";
import { encodePicture, joinTexts } from "./attachments.js";

/** Return an empty message of a model. @returns {GrowingMessage} */
export const makeMessage = () => ({ role: "assistant", content: "", thinking: "", tool_calls: [], stats: {} });

const PAUSES_MS = [300, 1000, 3000]; // before a lost response is taken up again
const browser = localStorage.getItem("browser") ?? makeDigits(1);
keep(localStorage, "browser", browser);

/** @param {number} words */
function makeDigits(words) {
  const random = crypto.getRandomValues(new Uint32Array(words)); // randomUUID needs https
  return [...random].map((number) => number.toString(16).padStart(8, "0")).join("");
}

/** Return a new stream: the id of its request, the bytes that were read of it, and when it began. @returns {AnswerStream} */
export const makeStream = () => ({ id: browser + makeDigits(4), at: 0, since: Date.now() });

/** Tell whether this browser has made a stream. @param {string} id */
export const isOwn = (id) => id.startsWith(browser);

/**
 * Send the request that `makeBody` returns, or go on with the one that was sent, and add what comes to
 * `message`; `onChange` is called whenever it has grown. The server goes on without a reader: what is lost
 * is taken up again.
 *
 * Returns how it ended: `{state: done, stopped, failed or broken, error}`. Never throws.
 * @param {(() => Promise<object>) | undefined} makeBody @param {GrowingMessage} message
 * @param {{ stream: AnswerStream, signal: AbortSignal, onChange: () => void }} options
 */
export async function streamAnswer(makeBody, message, { stream, signal, onChange }) {
  const seconds = () => (Date.now() - stream.since) / 1000;
  const headers = { "x-request-id": stream.id, "x-vllama-detach": "1" };
  /** @type {unknown} */
  let lost;
  for (let attempt = 0; ; attempt++) {
    try {
      const response = makeBody && !lost
        ? await send("api/chat", { method: "POST", body: await makeBody(), signal, headers })
        : await send(`api/streams/${stream.id}?from=${stream.at}`, { signal });
      for await (const part of readObjects(response, stream)) {
        take(message, part, seconds);
        onChange();
        attempt = 0;
      }
      if (!message.stats.done) throw new BrokenOff();
      return { state: "done", error: "" };
    } catch (error) {
      if (signal.aborted) return { state: "stopped", error: "" };
      const isGone = error instanceof ServerError && [403, 404].includes(error.status) && (lost || !makeBody);
      if (isGone && !lost) return { state: "broken", error: "" };
      const isLost = error instanceof Unreachable || error instanceof BrokenOff;
      if (isLost) lost ??= error;
      if (!isLost || attempt === PAUSES_MS.length) return { state: "failed", error: explain(isGone ? lost : error) };
      await new Promise((resolve) => setTimeout(resolve, PAUSES_MS[attempt]));
    }
  }
}

class BrokenOff extends Error {
  message = "the response ended early: the server closed the connection";
}

/** @param {GrowingMessage} message @param {Partial<ChatPart>} part @param {() => number} seconds */
function take(message, part, seconds) {
  const { content = "", thinking = "", tool_calls: calls = [] } = part.message ?? {};
  if ((content || thinking || calls.length) && message.stats.firstTokenS === undefined) {
    message.stats.firstTokenS = seconds();
  }
  if (content && message.thinking && !message.content) message.stats.thinkingS = seconds();
  if (content || thinking) countPart(message.stats, seconds());
  message.content += content;
  message.thinking += thinking;
  message.tool_calls.push(...calls);
  if (part.done) Object.assign(message.stats, readStats(part));
}

/** Count the pieces until the server gives its numbers at the end. @param {Stats} stats @param {number} now */
function countPart(stats, now) {
  const spent = now - Number(stats.firstTokenS);
  stats.tokensPerS = stats.tokens && spent > 0 ? stats.tokens / spent : null; // those after the first, in their time
  stats.tokens = (stats.tokens ?? 0) + 1;
}

/** @param {Partial<ChatPart>} part @returns {Stats} */
function readStats(part) {
  const { eval_duration: duration = 0, eval_count: tokens = 0, load_duration: loading = 0 } = part;
  const evaluated = duration / 1e9;
  return {
    done: true,
    reason: part.done_reason,
    promptTokens: part.prompt_eval_count,
    tokens,
    tokensPerS: evaluated > 0 ? tokens / evaluated : null,
    loadS: loading / 1e9,
  };
}

/**
 * Return the body of a request to `model`.
 *
 * `history` is what its pane has seen (see `listHistory`), `files` a Map of the attached files. The
 * answer to the last turn, if there is one, is what the model goes on from; `more` are tools of MCP servers.
 * @param {ChatValues} values @param {string} model @param {Exchange[]} history @param {Map<string, StoredFile>} files @param {Map<string, McpChoice>} more
 */
export async function makeRequest({ system, think, tools, options }, model, history, files, more) {
  /** @type {Message[]} */
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const { turn, answer } of history) {
    if (!answer || isFailure(answer)) continue;
    const attached = turn.files.map((id) => files.get(id)).filter((file) => file !== undefined);
    const pictures = attached.filter((file) => file.kind === "image");
    const content = joinTexts(turn.text, attached.filter((file) => file.kind === "text"));
    const images = await Promise.all(pictures.map(encodePicture));
    messages.push({ role: "user", content, ...(images.length && { images }) });
    messages.push(...answer.messages.filter(isUsable).map(strip));
  }
  // thinking that was broken off goes on where it stands (docs/reference/api.md#continuing-a-response)
  const last = history.at(-1)?.answer?.messages.at(-1);
  if (last && !isUsable(last) && last.thinking) messages.push({ role: "assistant", content: `<think>\n${last.thinking}` });
  /** @type {Record<string, unknown>} */
  const body = { model, messages };
  if (think !== "") body.think = /** @type {Record<string, boolean>} */ ({ yes: true, no: false })[think] ?? think;
  const offered = [...more].map(([name, { tool }]) => ({ type: "function", function: { name, description: tool.description, parameters: tool.inputSchema } }));
  if (tools || offered.length) body.tools = [...JSON.parse(tools || "[]"), ...offered];
  if (Object.keys(options ?? {}).length) body.options = options;
  return body;
}

/**
 * Tell whether an answer failed before there was anything of it. Such a turn is left out of later
 * requests: what made it fail, say an image for a model that sees none, would make them fail too.
 * @param {AnswerRecord} answer
 */
export const isFailure = ({ error, messages }) => Boolean(error) && !messages.some(isUsable);

/** @param {Message} message */
const isUsable = ({ role, content, tool_calls: calls }) =>
  role === "tool" || Boolean(content) || Boolean(calls?.length);

/** @param {Message} message */
function strip({ role, content, tool_calls: calls, tool_name: name }) {
  return { role, content, ...(calls?.length && { tool_calls: calls }), ...(name && { tool_name: name }) };
}
