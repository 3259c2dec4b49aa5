/** Where the user writes a message and attaches files; Enter sends it. */

import { count } from "../format.js";
import { icon } from "../parts/icon.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";
import { pictureUrl, readFile } from "./attachments.js";
import { keepFiles, keepText, readFiles, readText } from "./drafts.js";

const LONG_PASTE = 4000; // letters: more becomes a file, so that the message can be read

class MessageForm extends View {
  problem = ""; // why a file is not attached, or the message not sent
  reading = ""; // the name of a file that is read now
  /** @type {FormState} */ about = { conversation: null, busy: false, blind: "", used: null };

  enter() {
    const { signal } = this.leaving;
    this.addEventListener("paste", (event) => this.paste(event), { signal });
    this.addEventListener("dragover", (event) => event.preventDefault(), { signal });
    this.addEventListener("drop", (event) => this.drop(event), { signal });
  }

  /** @param {FormState} about */
  show(about) {
    const changed = about.conversation !== this.about.conversation;
    if (JSON.stringify(about) === JSON.stringify(this.about)) return;
    this.change({ about });
    if (changed) this.restoring = true;
  }

  template() {
    const { busy, blind, used } = this.about;
    const note = blind && this.files.some(({ kind }) => kind === "image") ? blind : "";
    return html`<form @submit=${this.submit}>
      ${this.files.length || this.reading
        ? html`<div class="files">${this.files.map((file) => this.preview(file))}
            ${this.reading ? html`<span class="preview" role="status"><span class="name">Reading ${this.reading} …</span></span>` : nothing}</div>`
        : nothing}
      <p class="error" role="alert" ?hidden=${!this.problem && !note}>${this.problem} ${note}</p>
      <label>
        <span class="hidden">Message</span>
        <textarea name="text" rows="1" placeholder="Write a message" aria-describedby="message-keys"
          dir="auto" @keydown=${this.press} @input=${this.keepDraft}></textarea>
      </label>
      <div class="tools">
        <label class="button quiet" title="Attach images, PDF or text files"
          >${icon("attach")}<span class="hidden">Attach</span>
          <input class="hidden" type="file" multiple @change=${this.pick} />
        </label>
        <small id="message-keys" class="grow">Enter sends, Shift+Enter adds a line</small>
        ${used ? html`<small title="tokens of the model's context">${count(used[0])} of ${count(used[1])} tokens</small>` : nothing}
        ${busy
          ? html`<button type="button" class="round danger" aria-label="Stop" title="Stop (Escape)" @click=${this.stop}>${icon("stop")}</button>`
          : html`<button class="round primary" aria-label="Send" title="Send (Enter)">${icon("up")}</button>`}
      </div>
    </form>`;
  }

  rendered() {
    if (!this.restoring) return;
    this.restoring = false;
    this.area.value = readText(this.id);
    this.change({ problem: "" });
  }

  /** The id of the conversation, "" for a new one. */
  get id() {
    return this.about.conversation ?? "";
  }

  get files() {
    return readFiles(this.id);
  }

  get area() {
    return /** @type {HTMLTextAreaElement} */ (this.querySelector("textarea"));
  }

  focus() {
    // after the frame of the page, which moves the focus to its beginning
    requestAnimationFrame(() => requestAnimationFrame(() => this.area?.focus()));
  }

  get isEmpty() {
    return !this.area?.value.trim() && !this.files.length;
  }

  /** Put a text into the field, for the user to go on with. @param {string} text */
  fill(text) {
    this.area.value = text;
    this.keepDraft();
    this.area.focus();
    this.area.setSelectionRange(text.length, text.length);
  }

  keepDraft() {
    keepText(this.id, this.area.value);
    this.say("");
  }

  /** @param {Attachment} file */
  preview(file) {
    const remove = () => {
      keepFiles(this.id, this.files.filter((one) => one !== file));
      this.update();
      this.area.focus();
    };
    const isImage = file.kind === "image";
    return html`<span class="preview">
      ${isImage ? html`<img src=${pictureUrl(file)} alt="image to send" />` : html`<span class="name">${file.name}</span>`}
      <button type="button" class="quiet" aria-label="Remove ${isImage ? "the image" : file.name}" @click=${remove}>${icon("close")}</button>
    </span>`;
  }

  /** @param {FieldEvent} event */
  press(event) {
    const composing = event.isComposing || event.keyCode === 229; // Safari tells by the code only
    if (event.key === "Enter" && !event.shiftKey && !composing) {
      event.preventDefault();
      event.target.form?.requestSubmit();
    } else if (event.key === "Escape" && this.about.busy) {
      this.stop();
    } else if (event.key === "ArrowUp" && this.isEmpty && !composing) {
      event.preventDefault();
      this.dispatchEvent(new Event("editlast"));
    }
  }

  /** @param {FormEvent} event */
  submit(event) {
    event.preventDefault();
    if (this.isEmpty) return;
    if (this.reading) return this.say(`“${this.reading}” is still being read. Send the message when it is attached.`);
    if (this.about.busy) return this.say("A response is still being generated. Wait for it to finish, or stop it (Escape).");
    const detail = { text: this.area.value, files: this.files };
    this.area.value = "";
    keepFiles(this.id, []);
    this.keepDraft();
    this.update();
    this.dispatchEvent(new CustomEvent("message", { detail }));
  }

  stop() {
    this.dispatchEvent(new Event("stop"));
  }

  /** Tell the user something about the message. @param {string} problem */
  say(problem) {
    if (problem === this.problem) return;
    this.change({ problem });
  }

  /** Attach pasted files, and a long text as one. @param {ClipboardEvent} event */
  paste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (text.length <= LONG_PASTE) return this.attach(event.clipboardData?.files);
    event.preventDefault();
    const number = this.files.filter(({ name }) => name.startsWith("pasted")).length;
    return this.attach([new File([text], `pasted${number ? `-${number + 1}` : ""}.txt`)]);
  }

  /** @param {FieldEvent} event */
  pick(event) {
    this.attach(event.target.files);
    event.target.value = "";
  }

  /** @param {DragEvent} event */
  drop(event) {
    event.preventDefault();
    this.attach(event.dataTransfer?.files);
  }

  /** @param {Iterable<File> | null | undefined} files */
  async attach(files) {
    const { id } = this; // the user may have gone to another conversation before they are read
    const problems = [];
    for (const file of [...(files ?? [])]) {
      try {
        this.change({ reading: file.name });
        const read = await readFile(file);
        keepFiles(id, [...readFiles(id), read]);
      } catch (error) {
        problems.push(/** @type {Error} */ (error).message);
      }
    }
    this.change({ reading: "", problem: problems.join("; ") });
  }
}

customElements.define("message-form", MessageForm);
