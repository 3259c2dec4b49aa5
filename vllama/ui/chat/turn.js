/** One turn of a conversation: what the user said, and the answers of one or two models. */

import "./markdown-text.js";
import { count, duration, rate } from "../format.js";
import { findLive } from "../live/state.js";
import { loadProgress } from "../parts/load-progress.js";
import { showSuccess } from "../parts/notices.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { copyText } from "./code-block.js";
import { isFailure } from "./answer.js";
import { answerTools, isWriting, regenerate } from "./session.js";

/** Return the template of a turn; `isLast` ones can be changed. */
export function turnTemplate(turn, models, isLast) {
  return html`
    <article class="message user">
      <h2>You</h2>
      ${turn.images.length
        ? html`<div class="images">${turn.images.map((url) => html`<img src=${url} alt="attached image" />`)}</div>`
        : nothing}
      ${(turn.texts ?? []).map(
        ({ name, text }) => html`<details class="tool">
          <summary>${name}</summary>
          <pre tabindex="0">${text}</pre>
        </details>`,
      )}
      ${turn.text ? html`<p class="text">${turn.text}</p>` : nothing}
    </article>
    <div class="answers">
      ${turn.answers.map((messages, pane) => answer(messages, pane, models[pane] ?? "earlier model", isLast))}
    </div>
  `;
}

function answer(messages, pane, model, isLast) {
  const writing = isWriting(messages);
  const last = messages.at(-1);
  const open = isLast && !writing && last?.role === "assistant" ? last.tool_calls : [];
  return html`<article class="message assistant" aria-busy=${writing}>
    <h2>${messages[0]?.model ?? model}</h2>
    ${messages.map((message) => (message.role === "tool" ? toolResult(message) : part(message, writing && message === last)))}
    ${isFailure(messages) && !isLast ? html`<p class="muted">Later messages are sent without this one.</p>` : nothing}
    ${open.length ? resultForm(open, pane) : nothing}
    ${writing || !last
      ? nothing
      : html`<footer>
          ${stats(last.stats ?? {})}
          <button class="quiet" @click=${() => copy(messages)}>Copy</button>
          ${isLast ? html`<button class="quiet" @click=${() => regenerate(pane)}>Regenerate</button>` : nothing}
        </footer>`}
  </article>`;
}

function part(message, writing) {
  const { content, thinking, tool_calls: calls, error, stopped, stats: known } = message;
  return html`
    ${thinking ? thoughts(thinking, known.thinkingS, writing && !content) : nothing}
    ${content ? html`<markdown-text .text=${content}></markdown-text>` : nothing}
    ${writing && !content && !thinking ? waiting(message.model) : nothing}
    ${calls.map(toolCall)}
    ${error ? html`<p class="error" role="alert">${error}</p>` : nothing}
    ${stopped ? html`<p class="muted">Stopped.</p>` : nothing}
    ${known.reason === "length" ? html`<p class="muted">It ended at the limit of tokens.</p>` : nothing}
  `;
}

function waiting(model) {
  const load = findLive(model)?.load;
  return load
    ? html`<p class="muted">Loading ${model} … ${loadProgress(model, load)}</p>`
    : html`<p class="muted waiting">Waiting for the first token …</p>`;
}

function thoughts(text, seconds, ongoing) {
  const words = ongoing ? "Thinking …" : `Thinking${seconds ? ` (${duration(seconds)})` : ""}`;
  return html`<details class="thinking">
    <summary>${words}</summary>
    <markdown-text .text=${text}></markdown-text>
  </details>`;
}

function toolCall({ function: { name, arguments: given } }) {
  return html`<details class="tool" open>
    <summary>Calls <code>${name}</code></summary>
    <pre tabindex="0">${JSON.stringify(given, null, 2)}</pre>
  </details>`;
}

function toolResult({ tool_name: name, content }) {
  return html`<details class="tool">
    <summary>Result of <code>${name}</code></summary>
    <pre tabindex="0">${content}</pre>
  </details>`;
}

/** Ask the user for the results of tool calls: the page runs no tools itself. */
function resultForm(calls, pane) {
  const submit = (event) => {
    event.preventDefault();
    const contents = new FormData(event.target).getAll("result");
    answerTools(pane, calls.map((call, index) => ({ name: call.function.name, content: contents[index] })));
  };
  return html`<form class="tool-results" @submit=${submit}>
    ${calls.map(
      (call) => html`<label
        ><span>Result of ${call.function.name}</span><textarea name="result" rows="2" required></textarea>
      </label>`,
    )}
    <button class="primary">Send the results</button>
  </form>`;
}

function stats({ tokens, tokensPerS, firstTokenS, promptTokens, loadS }) {
  const facts = [
    tokensPerS && `${rate(tokensPerS)} tokens/s`,
    firstTokenS !== undefined && `first token ${duration(firstTokenS)}`,
    tokens && `${count(tokens)} tokens`,
    promptTokens && `prompt ${count(promptTokens)}`,
    loadS > 1 && `load ${duration(loadS)}`,
  ];
  return html`<span class="stats">${facts.filter(Boolean).join(" · ")}</span>`;
}

async function copy(messages) {
  await copyText(messages.map((message) => message.content).filter(Boolean).join("\n\n"));
  showSuccess("The answer is copied.");
}
