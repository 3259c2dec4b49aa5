/** Where the user writes: text and images, sent with Enter. */

import { showError } from "../parts/notices.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

class MessageForm extends View {
  images = []; // data URLs
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
      ${this.images.length ? html`<div class="images">${this.images.map((url) => this.preview(url))}</div>` : nothing}
      ${this.images.length && this.note ? html`<p class="muted">${this.note}</p>` : nothing}
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
          >Images
          <input class="hidden" type="file" accept="image/*" multiple @change=${this.pick} />
        </label>
        ${this.busy
          ? html`<button type="button" class="danger" @click=${this.stop}>Stop</button>`
          : html`<button class="primary">Send</button>`}
      </div>
    </form>`;
  }

  preview(url) {
    const remove = () => {
      this.images = this.images.filter((one) => one !== url);
      this.update();
    };
    return html`<span class="preview">
      <img src=${url} alt="image to send" />
      <button type="button" class="quiet" aria-label="Remove the image" @click=${remove}>✕</button>
    </span>`;
  }

  press(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      event.target.form.requestSubmit();
    } else if (event.key === "Escape" && this.busy) {
      this.stop();
    }
  }

  submit(event) {
    event.preventDefault();
    const area = this.querySelector("textarea");
    if (this.busy || (!area.value.trim() && !this.images.length)) return;
    const detail = { text: area.value, images: this.images };
    area.value = "";
    this.images = [];
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
    const images = [...files].filter((file) => file.type.startsWith("image/"));
    try {
      this.images = [...this.images, ...(await Promise.all(images.map(readAsUrl)))];
    } catch (error) {
      showError(error);
    }
    this.update();
  }
}

function readAsUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

customElements.define("message-form", MessageForm);
