/** An answer of one model: its thinking, text and tool calls, how it ended, and what can be done with it. */

import "./markdown-text.js";
import { count, duration, rate } from "../format.js";
import { findLive } from "../live/state.js";
import { copyText } from "../parts/copy.js";
import { icon } from "../parts/icon.js";
import { choose } from "../parts/dialogs.js";
import { listNames } from "../live/library.js";
import { loadProgress } from "../parts/load-progress.js";
import { attempt, showSuccess } from "../parts/notices.js";
import { linkTo } from "../route.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { isFailure } from "./answer.js";
import { answerTools, callTools, continueAnswer, isWriting, regenerate, session, showAnswer, stop } from "./session.js";
import { listAutomatic, listOpen, pending } from "./tools.js";

/** @type {Record<string, string>} */
const ENDS = {
  stopped: "Stopped.",
  broken: "This response is incomplete: its page was closed, and the server no longer has the rest.",
};

/**
 * Return the template of an answer; `versions`: all answers of its place, `isLast`: nothing follows it.
 * `edit`: what the user edits it with.
 * @param {AnswerRecord} answer @param {{ versions: string[], isLast: boolean, edit: () => void }} place
 */
export function answerTemplate(answer, { versions, isLast, edit }) {
  const { id, model, messages, state, error } = answer;
  const writing = isWriting(id);
  const last = messages.at(-1);
  const calls = isLast && !writing ? listOpen(messages) : [];
  return html`<article class="message assistant" aria-busy=${writing !== ""} aria-label="Response of ${model}">
    <h2>${model}</h2>
    ${messages.map((message) =>
      message.role === "tool" ? toolResult(message) : part(message, writing && message === last),
    )}
    ${writing && !last?.content && !last?.thinking && !last?.tool_calls?.length ? waiting(model) : nothing}
    ${toolQuestion(id)}
    ${error ? html`<p class="error" role="alert">${error} ${logLink(model)}</p>` : nothing}
    ${!writing && ENDS[state] ? html`<p class="muted">${ENDS[state]}</p>` : nothing}
    ${!writing && last?.stats?.reason === "length" ? html`<p class="muted">Stopped: token limit reached.</p>` : nothing}
    ${isFailure(answer) && !isLast ? html`<p class="muted">Later messages are sent without this one.</p>` : nothing}
    ${repeat(calls.length ? [messages.length] : [], (number) => number, () => resultForm(calls, id))}
    ${writing === "elsewhere"
      ? html`<p class="muted">Being generated in another tab. <button @click=${() => attempt(stop(id))}>Stop</button></p>`
      : nothing}
    ${writing ? speedNow(last?.stats) : footer(answer, versions, calls, edit)}
  </article>`;
}

/**
 * Return arrows between versions; `ids` of all, `show` is called with another one.
 * @param {string[]} ids @param {string} id @param {(id: string) => Promise<unknown>} show @param {string} what
 */
export function versionArrows(ids, id, show, what) {
  if (ids.length < 2) return nothing;
  const place = ids.indexOf(id);
  /** @param {string} name @param {string} words @param {string | undefined} target */
  const arrow = (name, words, target) =>
    html`<button class="quiet" aria-label="${words} version of ${what}" title="${words} version" ?disabled=${!target}
      @click=${() => attempt(show(String(target)))}>${icon(name)}</button>`;
  return html`<span class="versions">
    ${arrow("left", "Earlier", ids[place - 1])}<span>${place + 1} of ${ids.length}</span>${arrow("right", "Later", ids[place + 1])}
  </span>`;
}

/** @param {AnswerRecord} answer @param {string[]} versions @param {ToolCall[]} calls @param {() => void} edit */
function footer(answer, versions, calls, edit) {
  const { id, messages, model, state } = answer;
  const last = messages.at(-1);
  const isCut = ["stopped", "failed", "broken"].includes(state) || last?.stats?.reason === "length";
  const canGoOn = isCut && !calls.length && (last?.content || last?.thinking);
  return html`<footer>
    ${versionArrows(versions, id, showAnswer, "the response")}
    ${messages.some(isSaid)
      ? html`<button class="quiet" aria-label="Copy the response" title="Copy" @click=${() => attempt(copy(messages))}>${icon("copy")}</button>`
      : nothing}
    <button class="quiet" aria-label="Regenerate" title="Regenerate" @click=${() => attempt(regenerate(id))}>${icon("again")} ${isCut ? "Regenerate" : nothing}</button>
    ${listNames().some((name) => name !== model)
      ? html`<button class="quiet" aria-label="Use another model" title="Use another model" @click=${() => attempt(useOther(answer))}>${icon("swap")}</button>`
      : nothing}
    ${last?.content && !calls.length
      ? html`<button class="quiet edit" data-edits=${id} aria-label="Edit the response" title="Edit" @click=${edit}>${icon("edit")}</button>`
      : nothing}
    ${canGoOn ? html`<button class="quiet" @click=${() => attempt(continueAnswer(id))}>Continue</button>` : nothing}
    ${stats(last?.stats ?? {})}
  </footer>`;
}

/** @param {Message} message @param {boolean | string} writing */
function part({ content, thinking, tool_calls: calls = [], stats: known = {} }, writing) {
  return html`
    ${thinking ? thoughts(thinking, known.thinkingS, writing && !content) : nothing}
    ${content ? html`<markdown-text .growing=${Boolean(writing)} .text=${content}></markdown-text>` : nothing}
    ${calls.map(toolCall)}
  `;
}

/** Return a link to the log of a model's engine, if it has one. @param {string} model */
function logLink(model) {
  const log = findLive(model)?.log;
  return log ? html`<a href=${linkTo("logs", log)}>Open the log of the engine</a>` : nothing;
}

/** @param {Stats} [known] */
const speedNow = (known) => (known?.tokensPerS ? html`<footer><span class="stats">${rate(known.tokensPerS)} tokens/s</span></footer>` : nothing);

/** @param {string} model */
function waiting(model) {
  const load = findLive(model)?.load;
  return load
    ? html`<p class="muted">Loading ${model} … ${loadProgress(model, load)}</p>`
    : html`<p class="muted waiting">Waiting for the first token …</p>`;
}

/** @param {string} text @param {number | undefined} seconds @param {boolean | string} ongoing */
function thoughts(text, seconds, ongoing) {
  const words = ongoing ? "Thinking …" : `Thinking${seconds ? ` (${duration(seconds)})` : ""}`;
  return html`<details class="thinking">
    <summary>${words}</summary>
    <markdown-text .growing=${Boolean(ongoing)} .text=${text}></markdown-text>
  </details>`;
}

/** @param {ToolCall} call */
function toolCall({ function: { name, arguments: given } }) {
  return html`<details class="tool" open>
    <summary>Calls <code>${name}</code></summary>
    <pre tabindex="0">${JSON.stringify(given, null, 2)}</pre>
  </details>`;
}

/** @param {Message} message */
function toolResult({ tool_name: name, content }) {
  return html`<details class="tool">
    <summary>Result of <code>${name}</code></summary>
    <pre tabindex="0" dir="auto">${content}</pre>
  </details>`;
}

/** Return what the user is asked about a tool of an MCP server, or that it is called. @param {string} id */
function toolQuestion(id) {
  const asked = pending.get(id);
  if (!asked) return nothing;
  const { name, server, tool, decide } = asked;
  if (!decide) return html`<p class="muted waiting">Calling ${name} …</p>`;
  /** @param {string} decision @param {string} words */
  const button = (decision, words) => html`<button class=${decision === "once" ? "primary" : ""}
    @click=${(event) => (stayNear(event.currentTarget), decide(decision))}>${words}</button>`;
  return html`<div class="ask-tool" role="group" aria-label="Permission to call ${name}">
    <p role="alert">Allow ${server.name} to run <code>${tool.name}</code> with these arguments?</p>
    <p class="muted" dir="auto">${tool.description}</p>
    <div class="row">
      ${button("once", "Allow once")} ${button("always", "Always in this conversation")} ${button("deny", "Deny")}
    </div>
  </div>`;
}

/** Keep the focus in the conversation when what has it goes. @param {HTMLElement} element */
const stayNear = (element) => /** @type {HTMLElement | null} */ (element.closest(".messages"))?.focus();

/** Ask the user for the results of tool calls, or for leave to call those of MCP servers. @param {ToolCall[]} calls @param {string} id */
function resultForm(calls, id) {
  /** @param {FormEvent} event */
  const submit = (event) => {
    event.preventDefault();
    const contents = new FormData(event.target).getAll("result");
    stayNear(event.target);
    const results = calls.map((call, index) => ({ name: call.function.name, content: String(contents[index]) }));
    attempt(answerTools(id, results));
  };
  return html`<form class="tool-results" @submit=${submit}>
    ${calls.map(
      (call) => html`<label
        ><span>Result of ${call.function.name}</span><textarea name="result" rows="2" dir="auto" required></textarea>
      </label>`,
    )}
    <button class="primary">Send the results</button>
    ${listAutomatic(calls, session.conversation.tools).length ? html`<button type="button" @click=${() => attempt(callTools(id))}>Call the tools</button>` : nothing}
  </form>`;
}

/** @param {Stats} stats */
function stats({ tokens, tokensPerS, firstTokenS, promptTokens, loadS = 0 }) {
  const facts = [
    tokensPerS && `${rate(tokensPerS)} tokens/s`,
    firstTokenS !== undefined && `first token ${duration(firstTokenS)}`,
    tokens && `${count(tokens)} tokens`,
    promptTokens && `prompt ${count(promptTokens)}`,
    loadS > 1 && `load ${duration(loadS)}`,
  ];
  return html`<span class="stats">${facts.filter(Boolean).join(" · ")}</span>`;
}

/** Have an answer written by a model that the user chooses. @param {AnswerRecord} answer */
async function useOther({ id, model }) {
  const names = listNames().filter((name) => name !== model);
  const name = await choose({ title: "Use another model", label: "Model", names, action: "Regenerate" });
  if (name) await regenerate(id, name);
}

/** @param {Message} message */
const isSaid = ({ role, content }) => role === "assistant" && content !== "";

/** @param {Message[]} messages */
async function copy(messages) {
  await copyText(messages.filter(isSaid).map((message) => message.content).join("\n\n"));
  showSuccess("Response copied.");
}
