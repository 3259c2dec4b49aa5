/** One turn of a conversation: what the user said, which can be edited, and the answers to it. */

import { copyText } from "../parts/copy.js";
import { confirm } from "../parts/dialogs.js";
import { icon } from "../parts/icon.js";
import { attempt, showSuccess } from "../parts/notices.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";
import { answerTemplate, versionArrows } from "./answer-view.js";
import { pictureUrl } from "./attachments.js";
import { edit, editAnswer, isWriting, removeTurn, showTurn } from "./session.js";

const LONG = { letters: 2000, lines: 30 }; // a message beyond it is folded

class ChatTurn extends View {
  /** @type {TurnItem | null} */ #item = null;
  editing = ""; // the id of the turn or the answer that is edited
  unfolded = false;
  wasWriting = false;

  /** A turn of which nothing has changed is not rendered again: there may be hundreds, and many tokens a second. @param {TurnItem} item */
  set item(item) {
    const writing = item.answers.some(({ id }) => isWriting(id));
    if (!writing && !this.wasWriting && this.#item && isSame(item, this.#item)) return;
    this.wasWriting = writing;
    this.#item = item;
    if (this.isConnected) this.update();
  }

  template() {
    const { turn, answers, siblings, versions, files, isLast } = /** @type {TurnItem} */ (this.#item);
    return html`
      <article class="message user" aria-label="Your message">
        <h2 class="hidden">You</h2>
        ${this.editing === turn.id
          ? this.editor({ text: turn.text, what: "message", action: "Send", save: (text) => this.send(text, turn) })
          : html`<div class="said">
                ${files.length ? html`<div class="files">${files.map(attached)}</div>` : nothing}
                ${turn.text ? this.text(turn.text) : nothing}
              </div>
              <footer>
                ${versionArrows(siblings, turn.id, showTurn, "the message")}
                <button class="quiet" aria-label="Copy the message" title="Copy" @click=${() => this.copy(turn.text)}>${icon("copy")}</button>
                <button class="quiet edit" data-edits=${turn.id} aria-label="Edit the message" title="Edit" @click=${this.beginEdit}>${icon("edit")}</button>
                <button class="quiet" aria-label="Delete the message" title="Delete" @click=${() => this.discard(turn)}>${icon("trash")}</button>
              </footer>`}
      </article>
      <div class="answers">
        ${answers.map((answer, pane) =>
          answer.id === this.editing
            ? this.answerEditor(answer)
            : answerTemplate(answer, { versions: versions[pane], isLast, edit: () => this.edit(answer.id) }),
        )}
      </div>
    `;
  }

  /** Return what the user said: as it was written, but for blocks of code; a long one is folded. @param {string} text */
  text(text) {
    const isLong = text.length > LONG.letters || text.split("\n").length > LONG.lines;
    const isFolded = isLong && !this.unfolded;
    const parts = text.split(/^```.*\n([\s\S]*?)\n```[ \t]*$/m).map((part) => part.replace(/^\n+|\n+$/g, ""));
    const toggle = () => {
      this.change({ unfolded: !this.unfolded });
    };
    return html`<div class="text ${isFolded ? "folded" : ""}" dir="auto">${parts.map((part, index) => (index % 2 ? html`<pre tabindex="0" dir="ltr">${part}</pre>` : part))}</div>
      ${isLong ? html`<button class="quiet" aria-expanded=${!isFolded} @click=${toggle}>${isFolded ? "Show all" : "Show less"}</button>` : nothing}`;
  }

  /** @param {AnswerRecord} answer */
  answerEditor({ id, model, messages }) {
    const text = messages.at(-1)?.content ?? "";
    const editor = this.editor({ text, what: "response", action: "Save", save: (changed) => this.saveAnswer(id, changed) });
    return html`<article class="message assistant" aria-label="Response of ${model}"><h2>${model}</h2>${editor}</article>`;
  }

  /** @param {{ text: string, what: string, action: string, save: (text: string) => void }} work */
  editor({ text, what, action, save }) {
    /** @param {FormEvent} event */
    const submit = (event) => {
      event.preventDefault();
      save(event.target.text.value);
    };
    return html`<form class="editor" @submit=${submit}>
      <textarea name="text" aria-label="Edit the ${what}" dir="auto" .value=${text} @keydown=${this.press}></textarea>
      <div class="row">
        <small class="grow">The current ${what} is kept as an earlier version.</small>
        <button type="button" @click=${this.endEdit}>Cancel</button>
        <button class="primary">${action}</button>
      </div>
    </form>`;
  }

  beginEdit() {
    this.edit(/** @type {TurnItem} */ (this.#item).turn.id);
  }

  /** @param {string} id */
  edit(id) {
    this.change({ editing: id });
    this.afterwards = () => {
      const area = /** @type {HTMLTextAreaElement} */ (this.querySelector(".editor textarea"));
      area.focus();
      area.setSelectionRange(area.value.length, area.value.length);
    };
  }

  endEdit() {
    const edited = this.editing;
    this.change({ editing: "" });
    this.afterwards = () => /** @type {HTMLElement | null} */ (this.querySelector(`[data-edits="${edited}"]`))?.focus();
  }

  /** @param {FieldEvent} event */
  press(event) {
    if (event.key === "Escape") {
      this.endEdit();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
      event.preventDefault();
      event.target.form?.requestSubmit();
    }
  }

  /** @param {string} text @param {Turn} turn */
  send(text, turn) {
    if (!text.trim() && !turn.files.length) return;
    this.change({ editing: "" });
    this.dispatchEvent(new Event("sent", { bubbles: true }));
    attempt(edit(turn.id, { text, files: turn.files }));
  }

  /** @param {string} id @param {string} text */
  saveAnswer(id, text) {
    if (!text.trim()) return;
    this.endEdit();
    attempt(editAnswer(id, text));
  }

  /** @param {Turn} turn */
  async discard({ id }) {
    const sure = await confirm({
      title: "Delete this message?",
      text: "All later messages are deleted too. They cannot be restored.",
      action: "Delete",
    });
    if (sure) await attempt(removeTurn(id));
  }

  /** @param {string} text */
  async copy(text) {
    await copyText(text);
    showSuccess("Message copied.");
  }
}

/** @param {Attachment} file */
function attached(file) {
  if (file.kind === "image") return html`<img src=${pictureUrl(file)} alt=${file.name || "attached image"} />`;
  return html`<details class="tool">
    <summary>${file.name}</summary>
    <pre tabindex="0">${file.text}</pre>
  </details>`;
}

/** @param {TurnItem} a @param {TurnItem} b */
const isSame = (a, b) =>
  a.turn === b.turn &&
  a.isLast === b.isLast &&
  /** @type {const} */ (["answers", "siblings", "versions", "files"]).every(
    (name) => a[name].length === b[name].length && a[name].every((one, index) => isAlike(one, b[name][index])),
  );

/** @param {unknown} a @param {unknown} b */
const isAlike = (a, b) => a === b || (Array.isArray(a) && Array.isArray(b) && a.join() === b.join());

customElements.define("chat-turn", ChatTurn);
