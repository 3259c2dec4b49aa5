/** The responses to chats that other devices with the same key have asked for: each can be read and stopped. */

import "./markdown-text.js";
import { plural } from "../format.js";
import { isWithoutKey } from "../live/state.js";
import { endRequest } from "../models/actions.js";
import { showDialog } from "../parts/dialogs.js";
import { ask, isForbidden } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";
import { isOwn, makeMessage, makeStream, streamAnswer } from "./answer.js";

const LOOK_MS = 5000;

class StreamList extends View {
  /** @type {(RequestRow | EndedRow)[]} */ rows = [];
  isRefused = false;

  enter() {
    this.read();
    this.every(LOOK_MS, () => isWithoutKey() || this.isRefused || this.read());
  }

  async read() {
    const { running, ended } = await ask("api/streams").catch((error) => {
      this.isRefused = isForbidden(error);
      return { running: [], ended: [] };
    });
    this.change({ rows: [...running, ...ended.toReversed()].filter(({ id, path }) => path === "/api/chat" && !isOwn(id)) });
  }

  template() {
    if (!this.rows.length) return nothing;
    return html`<h2 id="elsewhere">On other devices</h2>
      <div role="list" aria-labelledby="elsewhere">${this.rows.map((row) => this.row(row))}</div>`;
  }

  /** @param {RequestRow | EndedRow} row */
  row({ id, model, generated_tokens: tokens, ...row }) {
    const state = "state" in row ? row.state : "ended";
    return html`<div role="listitem">
      <span class="grow">${model} <small class="muted">${state}, ${plural(tokens, "token")}</small></span>
      <button aria-label="Read the response of ${model}" @click=${() => showDialog(model, html`<stream-text .stream=${{ ...makeStream(), id }}></stream-text>`)}>Read</button>
      ${state === "ended" ? nothing : html`<button aria-label="Stop the response of ${model}" @click=${() => endRequest(id).then(() => this.read())}>Stop</button>`}
    </div>`;
  }
}

class StreamText extends View {
  message = makeMessage();
  end = { state: "writing", error: "" };
  stream = makeStream();

  async enter() {
    const onChange = () => this.update();
    this.change({ end: await streamAnswer(undefined, this.message, { stream: this.stream, signal: this.leaving.signal, onChange }) });
  }

  template() {
    const { content, thinking } = this.message;
    const { state, error } = this.end;
    return html`<article aria-busy=${state === "writing"}>
      <markdown-text .growing=${state === "writing"} .text=${content || thinking}></markdown-text>
      ${error ? html`<p class="error" role="alert">${error}</p>` : nothing}
    </article>`;
  }
}

customElements.define("stream-list", StreamList);
customElements.define("stream-text", StreamText);
