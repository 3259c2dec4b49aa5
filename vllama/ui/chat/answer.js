/** One answer of a model: the request of `/api/chat`, and the message that grows while it arrives. */

import { explain, readObjects, send } from "../server.js";
import { joinTexts } from "./attachments.js";

/**
 * Ask `model` for the next message of pane `pane`, and add it to the last turn.
 *
 * `onChange` is called whenever the message has grown. Never throws: what went wrong stands in the
 * message.
 */
export async function streamAnswer(conversation, pane, { signal, onChange }) {
  const message = {
    role: "assistant",
    model: conversation.models[pane],
    content: "",
    thinking: "",
    tool_calls: [],
    stats: {},
  };
  const started = performance.now();
  const seconds = () => (performance.now() - started) / 1000;
  const body = makeRequest(conversation, pane);
  conversation.turns.at(-1).answers[pane].push(message);
  onChange();
  try {
    const response = await send("api/chat", { method: "POST", body, signal });
    for await (const part of readObjects(response)) {
      take(message, part, seconds);
      onChange();
    }
    if (!message.stats.done) message.error = "the answer broke off: the server closed the connection";
  } catch (error) {
    if (signal.aborted) message.stopped = true;
    else message.error = explain(error);
  }
  message.stats.seconds = seconds();
  onChange();
}

function take(message, part, seconds) {
  const { content = "", thinking = "", tool_calls: calls = [] } = part.message ?? {};
  if ((content || thinking || calls.length) && message.stats.firstTokenS === undefined) {
    message.stats.firstTokenS = seconds();
  }
  if (content && message.thinking && !message.content) message.stats.thinkingS = seconds();
  message.content += content;
  message.thinking += thinking;
  message.tool_calls.push(...calls);
  if (part.done) Object.assign(message.stats, readStats(part));
}

function readStats(part) {
  const evaluated = part.eval_duration / 1e9;
  return {
    done: true,
    reason: part.done_reason,
    promptTokens: part.prompt_eval_count,
    tokens: part.eval_count,
    tokensPerS: evaluated > 0 ? part.eval_count / evaluated : null,
    loadS: part.load_duration / 1e9,
  };
}

/** Return the body of the request: the conversation so far as this pane has seen it. */
function makeRequest({ models, system, think, tools, turns }, pane) {
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    // before the second model was added, the first one answered
    const answer = turn.answers[pane] ?? turn.answers[0];
    if (isFailure(answer)) continue;
    const images = turn.images.map((url) => url.slice(url.indexOf(",") + 1));
    const content = joinTexts(turn.text, turn.texts);
    messages.push({ role: "user", content, ...(images.length && { images }) });
    messages.push(...answer.filter(isUsable).map(strip));
  }
  const body = { model: models[pane], messages };
  if (think !== "") body.think = think === "yes";
  if (tools) body.tools = JSON.parse(tools);
  return body;
}

/**
 * Tell whether an answer failed before there was anything of it. Such a turn is left out of later
 * requests: what made it fail, say an image for a model that sees none, would make them fail too.
 */
export const isFailure = (messages) => messages.some(({ error }) => error) && !messages.some(isUsable);

const isUsable = ({ role, content, tool_calls: calls }) =>
  role === "tool" || Boolean(content) || calls.length > 0;

function strip({ role, content, tool_calls: calls, tool_name: name }) {
  return { role, content, ...(calls?.length && { tool_calls: calls }), ...(name && { tool_name: name }) };
}
