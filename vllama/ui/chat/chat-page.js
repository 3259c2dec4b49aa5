/** Chat: conversations with one model, or with two side by side. */

import "./message-form.js";
import { library, listCapabilities, listNames, refreshLibrary } from "../live/library.js";
import { confirm } from "../parts/dialogs.js";
import { showError } from "../parts/notices.js";
import { readRoute } from "../route.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { live } from "../vendor/lit-html/directives/live.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";
import { exportConversations } from "./conversations.js";
import { begin, change, choose, forget, isBusy, loadConversations, say, session, stop } from "./session.js";
import { turnTemplate } from "./turn.js";

const NEAR_END_PX = 60;

/** Return what a screen reader is told of the last answers: being written, or how they ended. */
function describeEnd(conversation) {
  if (!conversation.turns.length) return "";
  if (isBusy(conversation)) return "The answer is being written.";
  const last = conversation.turns.at(-1).answers.map((messages) => messages.at(-1));
  if (last.some((message) => message?.error)) return "The answer failed.";
  if (last.some((message) => message?.stopped)) return "The answer was stopped.";
  return "The answer is complete.";
}

class ChatPage extends View {
  static topics = ["chat", "library", "models"];

  toolsError = ""; // why what the user has written there is not used

  enter() {
    const { query } = readRoute();
    if (!session.current || query.get("model")) begin(query.get("model") ?? undefined);
    loadConversations().catch(() => {}); // a browser that keeps nothing can still chat
    this.listen("library", () => this.chooseModel());
    this.every(1000, () => isBusy(session.current) && this.update()); // the time that a load takes
    if (library.loaded) this.chooseModel();
    else refreshLibrary().catch(showError);
  }

  template() {
    const log = this.querySelector(".messages");
    this.atEnd = !log || log.scrollTop + log.clientHeight > log.scrollHeight - NEAR_END_PX;
    const conversation = session.current;
    return html`
      <h1 class="hidden">Chat</h1>
      <div class="chat">
        <details class="conversations" ?open=${matchMedia("(min-width: 800px)").matches}>
          <summary>Conversations</summary>
          ${this.conversations()}
        </details>
        <section aria-label="Conversation">
          ${this.modelBar(conversation)}
          <div class="messages ${conversation.models.length > 1 ? "two" : ""}" tabindex="0" role="region" aria-label="Messages">
            ${conversation.turns.length
              ? conversation.turns.map((turn, index) =>
                  turnTemplate(turn, conversation.models, index === conversation.turns.length - 1),
                )
              : html`<p class="muted">Ask something. The conversation stays in this browser.</p>`}
          </div>
          <p class="hidden" role="status">${describeEnd(conversation)}</p>
          <message-form
            @message=${({ detail }) => this.send(detail)}
            @stop=${stop}
          ></message-form>
        </section>
      </div>
    `;
  }

  rendered() {
    const log = this.querySelector(".messages");
    if (this.atEnd) log.scrollTop = log.scrollHeight;
    const blind = session.current.models.filter(
      (name) => listCapabilities(name).length && !listCapabilities(name).includes("vision"),
    );
    const note = blind.length ? `${blind.join(" and ")} cannot see images: choose another model, or remove them.` : "";
    this.querySelector("message-form").show({ busy: isBusy(session.current), note });
  }

  conversations() {
    return html`
      <button class="new" @click=${() => begin()}>New conversation</button>
      <ul>
        ${repeat(
          session.list,
          (one) => one.id,
          (one) => html`<li class=${one === session.current ? "current" : ""}>
            <button class="quiet grow" aria-current=${one === session.current} @click=${() => choose(one)}>${one.title}</button>
            <button class="quiet" aria-label="Export “${one.title}”" title="Export" @click=${() => exportConversations([one], one.title)}>↓</button>
            <button class="quiet" aria-label="Delete “${one.title}”" title="Delete" @click=${() => this.forget([one], `“${one.title}”`)}>✕</button>
          </li>`,
        )}
      </ul>
      ${session.list.length > 1
        ? html`<button class="quiet" @click=${() => exportConversations(session.list, "conversations")}>Export all</button>
            <button class="quiet" @click=${() => this.forget(session.list, "all conversations")}>Delete all …</button>`
        : nothing}
    `;
  }

  modelBar({ models, system, think, tools }) {
    const two = models.length > 1;
    return html`<div class="row model-bar">
      ${models.map((_, pane) => this.modelChoice(models, pane))}
      <button @click=${() => change({ models: two ? [models[0]] : [models[0], this.otherThan(models[0])] })}>
        ${two ? "One model" : "Compare two"}
      </button>
      <details class="options">
        <summary>Options</summary>
        <div class="card">
          <label><span>System message</span>
            <textarea rows="3" .value=${system} @change=${(event) => change({ system: event.target.value })}></textarea></label>
          <label><span>Thinking</span>
            <select .value=${live(think)} @change=${(event) => change({ think: event.target.value })}>
              <option value="">model default</option>
              <option value="yes">yes</option>
              <option value="no">no</option>
            </select></label>
          <label><span>Tools (JSON). You enter their results.</span>
            <textarea rows="4" spellcheck="false" aria-describedby="tools-error" aria-invalid=${Boolean(this.toolsError)} .value=${tools} @change=${(event) => this.setTools(event)}></textarea></label>
          <p id="tools-error" class="error" role="alert">${this.toolsError}</p>
        </div>
      </details>
    </div>`;
  }

  modelChoice(models, pane) {
    const names = listNames();
    const chosen = models[pane];
    const offered = chosen && !names.includes(chosen) ? [chosen, ...names] : names;
    const pick = (event) => change({ models: models.with(pane, event.target.value) });
    return html`<label class="grow"
      ><span>${models.length > 1 ? `Model ${pane + 1}` : "Model"}</span>
      <select @change=${pick}>
        ${chosen ? nothing : html`<option value="" selected>choose one</option>`}
        ${offered.map((name) => html`<option value=${name} .selected=${name === chosen}>${name}</option>`)}
      </select>
    </label>`;
  }

  otherThan(model) {
    return listNames().find((name) => name !== model) ?? model;
  }

  setTools(event) {
    const { value } = event.target;
    try {
      if (value.trim() && !Array.isArray(JSON.parse(value))) throw new SyntaxError("it is no list");
      this.toolsError = "";
      change({ tools: value.trim() });
    } catch (error) {
      this.toolsError = `cannot read the tools: ${error.message}`;
      this.update();
    }
  }

  /** Give a new conversation a model that is there: the last one that was used may be gone. */
  chooseModel() {
    const { models, turns } = session.current;
    const chats = listNames().filter((name) => {
      const capabilities = listCapabilities(name);
      return !capabilities.length || capabilities.includes("completion");
    });
    if (turns.length || !chats.length || chats.includes(models[0])) return;
    const tagged = `${models[0]}:latest`; // an address may leave the tag out, as requests may
    change({ models: [chats.includes(tagged) ? tagged : chats[0]] });
  }

  send(message) {
    this.querySelector(".messages").scrollTop = Number.MAX_SAFE_INTEGER;
    say(message);
  }

  async forget(conversations, what) {
    const sure = await confirm({
      title: `Delete ${what}?`,
      text: "Conversations are kept in this browser only, so they cannot be restored.",
      action: "Delete",
    });
    if (sure) await forget(conversations);
  }
}

customElements.define("chat-page", ChatPage);
