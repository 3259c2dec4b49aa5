/** Where the user writes a message and attaches files; Enter sends it. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";
import { readFile } from "./attachments.js";

class MessageForm extends View {
  images = []; // data URLs
  texts = []; // names and texts of files
  problem = ""; // why a file is not attached
  busy = false;

  enter() {
    const { signal } = this.leaving;
    this.addEventListener("paste", (event) => this.attach(event.clipboardData.files), { signal });
    this.addEventListener("dragover", (event) => event.preventDefault(), { signal });
    this.addEventListener("drop", (event) => this.drop(event), { signal });
  }

  /** `busy`: an answer is being written, so that there is something to stop. */
  show({ busy, note }) {
    if (busy === this.busy && note === this.note) return;
    Object.assign(this, { busy, note });
    this.update();
  }

  template() {
    return html`<form @submit=${this.submit}>
      ${this.images.length || this.texts.length
        ? html`<div class="images">
            ${this.images.map((url) => this.preview(url))} ${this.texts.map((file) => this.fileName(file))}
          </div>`
        : nothing}
      <p class="error" role="alert" ?hidden=${!this.problem && !this.blindNote}>${this.problem} ${this.blindNote}</p>
      <div class="row">
        <label class="grow"
          ><span class="hidden">Message</span>
          <textarea
            name="text"
            rows="2"
            placeholder="Write a message. Enter sends it, Shift and Enter begin a new line."
            @keydown=${this.press}
          ></textarea>
        </label>
        <label class="button"
          >Attach
          <input class="hidden" type="file" multiple @change=${this.pick} />
        </label>
        ${this.busy
          ? html`<button type="button" class="danger" @click=${this.stop}>Stop</button>`
          : html`<button class="primary">Send</button>`}
      </div>
    </form>`;
  }

  /** What to say of the attached images before they are sent. */
  get blindNote() {
    return this.images.length ? (this.note ?? "") : "";
  }

  preview(url) {
    return html`<span class="preview">
      <img src=${url} alt="image to send" />
      ${this.removal("images", url, "the image")}
    </span>`;
  }

  fileName(file) {
    return html`<span class="badge">${file.name} ${this.removal("texts", file, file.name)}</span>`;
  }

  removal(list, attached, what) {
    const remove = () => {
      this[list] = this[list].filter((one) => one !== attached);
      this.update();
    };
    return html`<button type="button" class="quiet" aria-label="Remove ${what}" @click=${remove}>✕</button>`;
  }

  press(event) {
    const composing = event.isComposing || event.keyCode === 229; // Safari tells by the code only
    if (event.key === "Enter" && !event.shiftKey && !composing) {
      event.preventDefault();
      event.target.form.requestSubmit();
    } else if (event.key === "Escape" && this.busy) {
      this.stop();
    }
  }

  submit(event) {
    event.preventDefault();
    const area = this.querySelector("textarea");
    const { images, texts } = this;
    if (this.busy || !(area.value.trim() || images.length || texts.length)) return;
    const detail = { text: area.value, images, texts };
    area.value = "";
    Object.assign(this, { images: [], texts: [], problem: "" });
    this.update();
    this.dispatchEvent(new CustomEvent("message", { detail }));
  }

  stop() {
    this.dispatchEvent(new Event("stop"));
  }

  pick(event) {
    this.attach(event.target.files);
    event.target.value = "";
  }

  drop(event) {
    event.preventDefault();
    this.attach(event.dataTransfer.files);
  }

  async attach(files) {
    const problems = [];
    for (const file of [...files]) {
      try {
        const { image, text } = await readFile(file);
        if (image) this.images = [...this.images, image];
        else this.texts = [...this.texts, text];
      } catch (error) {
        problems.push(error.message);
      }
    }
    this.problem = problems.join("; ");
    this.update();
  }
}

customElements.define("message-form", MessageForm);
