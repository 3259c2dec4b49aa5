/** One answer of a model: the request of `/api/chat`, and the message that grows while it arrives. */

import { explain, readObjects, send } from "../server.js";
import { encodePicture, joinTexts } from "./attachments.js";

/** Return an empty message of a model. @returns {GrowingMessage} */
export const makeMessage = () => ({ role: "assistant", content: "", thinking: "", tool_calls: [], stats: {} });

/**
 * Send the request that `makeBody` returns, and add what comes to `message`; `onChange` is called
 * whenever it has grown.
 *
 * Returns how it ended: `{state: done, stopped or failed, error}`. Never throws.
 * @param {() => Promise<object>} makeBody @param {GrowingMessage} message
 * @param {{ signal: AbortSignal, onChange: () => void }} options
 */
export async function streamAnswer(makeBody, message, { signal, onChange }) {
  const started = performance.now();
  const seconds = () => (performance.now() - started) / 1000;
  const end = { state: "done", error: "" };
  message.stats = {};
  try {
    const response = await send("api/chat", { method: "POST", body: await makeBody(), signal });
    for await (const part of readObjects(response)) {
      take(message, part, seconds);
      onChange();
    }
    if (!message.stats.done) throw new BrokenOff();
  } catch (error) {
    if (signal.aborted) end.state = "stopped";
    else Object.assign(end, { state: "failed", error: error instanceof BrokenOff ? error.message : explain(error) });
  }
  message.stats.seconds = seconds();
  return end;
}

class BrokenOff extends Error {
  message = "the answer broke off: the server closed the connection";
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
 * answer to the last turn, if there is one, is what the model goes on from.
 * @param {ChatValues} values @param {string} model @param {Exchange[]} history @param {Map<string, StoredFile>} files
 */
export async function makeRequest({ system, think, tools, options }, model, history, files) {
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
  if (tools) body.tools = JSON.parse(tools);
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
