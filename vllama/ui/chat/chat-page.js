/** Chat: conversations with one model, or with two side by side. */

import "./chat-settings.js";
import "./chat-turn.js";
import "./conversation-list.js";
import "./message-form.js";
import { isAble, library, listNames, refreshLibrary } from "../live/library.js";
import { findLive } from "../live/state.js";
import { nameEach, select } from "../parts/fields.js";
import { icon } from "../parts/icon.js";
import { attempt, showError } from "../parts/notices.js";
import { linkTo, readRoute } from "../route.js";
import { isField } from "../shortcuts.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";
import { greeting, suggestions } from "./empty-chat.js";
import { connectAll } from "./mcp.js";
import { beginConversation, change, isWriting, openConversation, say, session, stop } from "./session.js";

const NEAR_END_PX = 60;
const narrow = matchMedia("(max-width: 799px)");

/** Return what a screen reader is told of the last answers: being written, or how they ended. @param {Step} step */
function describeEnd({ answers }) {
  const states = answers.map(({ state }) => state);
  if (states.includes("writing")) return "Generating the response.";
  if (states.includes("failed")) return "The response failed.";
  if (states.some((state) => state !== "done")) return "The response was stopped.";
  return "The response is complete.";
}

class ChatPage extends View {
  static topics = ["chat", "library", "models"];

  /** @type {string | undefined} */ sought; // the turn to be scrolled to
  /** @type {Element | null} */ column = null;
  growing = new ResizeObserver(() => this.followEnd());
  address = ""; // the one that is shown
  top = 0;
  panel = ""; // "list" or "settings": what lies beside the conversation, or on a phone over it
  atEnd = true;

  enter() {
    this.openAddress();
    connectAll(); // a message waits for no server that has had time
    const { signal } = this.leaving;
    addEventListener("hashchange", () => this.openAddress().then(() => this.goOn()), { signal });
    addEventListener("keydown", (event) => this.press(/** @type {FieldEvent} */ (event)), { signal });
    narrow.addEventListener("change", () => this.update(), { signal });
    this.listen("library", () => this.chooseModel());
    // the time that a load takes
    this.every(1000, () => this.isBusy && this.querySelectorAll("chat-turn").forEach((turn) => turn.wasWriting && turn.update()));
    if (library.loaded) this.chooseModel();
    else refreshLibrary().catch(showError);
  }

  leave() {
    this.growing.disconnect();
  }

  /** Show the conversation that the address names, or a new one; without either, the one that was shown last. */
  async openAddress() {
    const { page, parts, query } = readRoute();
    if (page !== "chat") return;
    if (this.panel === "list") this.panel = "";
    this.atEnd = true;
    const { hash } = location;
    const at = query.get("at") ?? undefined;
    if (parts[0]) await attempt(openConversation(parts[0], at));
    else if (query.has("model") || !session.opened) beginConversation(query.get("model") ?? undefined);
    this.chooseModel();
    this.change({ address: hash, atEnd: !at, sought: at });
  }

  /** Put the user who has begun a conversation into the composer; a phone would cover half of the page. */
  goOn() {
    if (session.path.length || narrow.matches) return;
    this.querySelector("message-form")?.focus();
  }

  /** Begin a conversation, for a shortcut. */
  begin() {
    beginConversation(session.conversation.models[0]);
    history.pushState(null, "", linkTo("chat"));
    this.address = location.hash;
    this.panel = narrow.matches ? "" : this.panel;
    return this.reach("message-form textarea");
  }

  /** Go to the search of the conversations, for a shortcut. */
  search() {
    if (narrow.matches) this.panel = "list";
    return this.reach("conversation-list [type=search]");
  }

  /** Focus a field once it is there: the page may have been opened just now. @param {string} selector */
  async reach(selector) {
    this.update();
    for (let frames = 0; frames < 60; frames++) {
      await new Promise(requestAnimationFrame);
      const field = /** @type {HTMLElement | null} */ (this.querySelector(selector));
      if (frames > 1 && field) return field.focus();
    }
  }

  /** The answers that are being written, here or in another tab. */
  get growingAnswers() {
    return session.path.at(-1)?.answers.filter(({ id }) => isWriting(id)) ?? [];
  }

  get isBusy() {
    return this.growingAnswers.length > 0;
  }

  stop() {
    for (const { id } of this.growingAnswers) attempt(stop(id));
  }

  template() {
    const { conversation, path, trouble } = session;
    const isEmpty = !path.length;
    const covered = narrow.matches && this.panel !== "";
    return html`
      <h1 class="hidden">Chat</h1>
      <div class="chat ${this.panel ? `with-${this.panel}` : ""}">
        <conversation-list role="region" aria-label="Conversations" ?inert=${narrow.matches && this.panel !== "list"}></conversation-list>
        <section class=${isEmpty ? "empty" : ""} aria-label="Conversation" ?inert=${covered}>
          ${this.bar(conversation)} ${trouble ? html`<p class="trouble" role="alert">${trouble.text}</p>` : nothing}
          <div class="messages" tabindex="0" role="region" aria-label="Messages" @scroll=${this.noteScroll} @sent=${this.goToEnd}>
            <div class="column ${conversation.models.length > 1 ? "two" : ""}">
              ${isEmpty
                ? greeting(conversation.models)
                : repeat(path, ({ turn }) => turn.id, (item, index) => html`<chat-turn data-id=${item.turn.id} .item=${this.makeItem(item, index)}></chat-turn>`)}
            </div>
          </div>
          <div class="end">
            <button class="newest" ?hidden=${this.atEnd || isEmpty} @click=${this.goToEnd}>${icon("down")} Newest</button>
          </div>
          <p class="hidden" role="status">${isEmpty ? "" : describeEnd(/** @type {Step} */ (path.at(-1)))}</p>
          <message-form
            @message=${({ detail }) => this.send(detail)}
            @editlast=${() => [...this.querySelectorAll("chat-turn")].at(-1)?.beginEdit()}
            @stop=${this.stop}
          ></message-form>
          ${isEmpty ? suggestions(conversation.models, (text) => this.querySelector("message-form")?.fill(text)) : nothing}
        </section>
        ${covered ? html`<div class="backdrop" @click=${() => this.toggle("")}></div>` : nothing}
        ${this.panel === "settings"
          ? html`<chat-settings role="region" aria-label="Conversation settings" @close=${() => this.toggle("")}></chat-settings>`
          : nothing}
      </div>
    `;
  }

  /** @param {Step} step @param {number} index @returns {TurnItem} */
  makeItem({ turn, answers, siblings, versions }, index) {
    const files = turn.files.map((id) => session.files.get(id)).filter((file) => file !== undefined);
    return { turn, answers, siblings, versions, files, isLast: index === session.path.length - 1 };
  }

  /** @param {Conversation} conversation */
  bar({ models }) {
    const two = models.length > 1;
    const other = listNames().find((name) => name !== models[0]);
    /** @param {string} name @param {string} shape @param {string} words */
    const toggle = (name, shape, words) => html`<button class="quiet toggle-${name}" aria-label=${words} title=${words}
      aria-expanded=${this.panel === name} @click=${() => this.toggle(this.panel === name ? "" : name)}>${icon(shape)}<span class="words">${words}</span></button>`;
    return html`<div class="bar">
      ${toggle("list", "menu", "Conversations")}
      ${models.map((_, pane) => this.modelChoice(models, pane))}
      <button class="quiet" title=${two ? "One model" : "Compare two models"} aria-label=${two ? "One model" : "Compare two models"} ?disabled=${!two && !other} @click=${() => attempt(change({ models: two ? [models[0]] : [models[0], String(other)] }))}>
        ${icon("columns")}<span class="words">${two ? "One model" : "Compare"}</span>
      </button>
      <span class="grow"></span>
      ${toggle("settings", "sliders", "Chat settings")}
    </div>`;
  }

  /** @param {string[]} models @param {number} pane */
  modelChoice(models, pane) {
    const names = listNames();
    const chosen = models[pane];
    const offered = chosen && !names.includes(chosen) ? [chosen, ...names] : names;
    /** @type {[string, string][]} */
    const values = chosen ? nameEach(offered) : [["", "no model"], ...nameEach(offered)];
    return select(models.length > 1 ? `Model ${pane + 1}` : "Model", values, chosen, (name) => attempt(change({ models: models.with(pane, name) })));
  }

  rendered() {
    const { conversation, path } = session;
    const column = this.querySelector(".column");
    if (column && column !== this.column) this.growing.observe(column);
    this.column = column;
    this.followEnd();
    if (this.sought) {
      this.querySelector(`[data-id="${this.sought}"]`)?.scrollIntoView();
      this.sought = "";
    }
    const blind = conversation.models.filter((name) => !isAble(name, "vision"));
    this.querySelector("message-form")?.show({
      conversation: path.length ? conversation.id : "",
      busy: this.isBusy,
      blind: blind.length ? `${blind.join(" and ")} cannot see images: choose another model, or remove them.` : "",
      used: this.measureContext(),
    });
    // an address that the user has gone to meanwhile is opened next
    if (location.hash === this.address && (readRoute().parts[0] ?? "") !== conversation.id) {
      history.replaceState(null, "", linkTo("chat", conversation.id || undefined));
      this.address = location.hash;
    }
  }

  /** Return how many tokens of the context the conversation takes, and how many there are. @returns {FormState["used"]} */
  measureContext() {
    const [answer] = session.path.at(-1)?.answers ?? [];
    const { promptTokens, tokens } = answer?.messages.at(-1)?.stats ?? {};
    const size = answer && findLive(answer.model)?.context_length;
    return promptTokens && size ? [promptTokens + (tokens ?? 0), size] : null;
  }

  followEnd() {
    if (this.atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  goToEnd() {
    this.change({ atEnd: true });
  }

  noteScroll() {
    const { scrollTop, clientHeight, scrollHeight } = this.log;
    const wentUp = scrollTop < this.top; // a text that grows moves the end away, too
    this.top = scrollTop;
    const atEnd = scrollTop + clientHeight > scrollHeight - NEAR_END_PX || (this.atEnd && !wentUp);
    if (atEnd === this.atEnd) return;
    this.change({ atEnd });
  }

  get log() {
    return /** @type {HTMLElement} */ (this.querySelector(".messages"));
  }

  /** @param {FieldEvent} event */
  press(event) {
    if (event.key !== "Escape" || document.querySelector("dialog")) return;
    const isInside = narrow.matches || event.target === document.body || event.target.closest?.("chat-settings");
    if (!this.panel || !isInside) return isField(event.target) ? undefined : this.stop();
    /** @type {HTMLElement} */ (document.activeElement).blur(); // a field takes what was written into it
    this.toggle("");
  }

  /** Open a panel and go there (the settings do so themselves), or close it and go back to its button. @param {string} panel */
  toggle(panel) {
    const target = /** @type {Record<string, string>} */ ({ "": `.toggle-${this.panel}`, list: "conversation-list a" })[panel];
    this.change({ panel });
    if (target) requestAnimationFrame(() => /** @type {HTMLElement | null} */ (this.querySelector(target))?.focus());
  }

  /** Give a new conversation a model that is there: the last one that was used may be gone. */
  chooseModel() {
    const { conversation, path } = session;
    const { models } = conversation;
    const chats = listNames().filter((name) => isAble(name, "completion"));
    if (!library.loaded || path.length || !chats.length || chats.includes(models[0])) return;
    const tagged = `${models[0]}:latest`; // an address may leave the tag out, as requests may
    attempt(change({ models: [chats.includes(tagged) ? tagged : chats[0]] }));
  }

  /** @param {{ text: string, files: Attachment[] }} message */
  send(message) {
    this.atEnd = true;
    attempt(say(message));
  }
}

customElements.define("chat-page", ChatPage);
