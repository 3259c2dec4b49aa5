/** The settings of a conversation, in a drawer: system prompt, thinking, sampling, context, tools, and presets of all these. */

import { count } from "../format.js";
import { findLive } from "../live/state.js";
import { select } from "../parts/fields.js";
import { icon } from "../parts/icon.js";
import { attempt } from "../parts/notices.js";
import { ask } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";
import { connectAll } from "./mcp.js";
import { change, listPresets, removePreset, savePreset, session } from "./session.js";
import { makeConversation } from "./shown.js";
import { nameTool } from "./tools.js";

/** @type {[string, string, number | undefined, number | undefined, number][]} */
const SAMPLING = [
  // name, label, least, most, step
  ["temperature", "Temperature", 0, 2, 0.1],
  ["top_p", "Top P", 0, 1, 0.05],
  ["top_k", "Top K", 0, undefined, 1],
  ["min_p", "Min P", 0, 1, 0.01],
  ["repeat_penalty", "Repeat penalty", 0, undefined, 0.05],
  ["seed", "Seed", undefined, undefined, 1],
  ["num_predict", "Max tokens", -1, undefined, 1],
  ["num_ctx", "Context length", 1, undefined, 1],
];
/** @type {[string, string][]} */
const THINKING = [["", "model default"], ["yes", "yes"], ["no", "no"], ["low", "low"], ["medium", "medium"], ["high", "high"]];

class ChatSettings extends View {
  static topics = ["chat", "models"];

  toolsError = { opened: 0, text: "" }; // why what the user has written there is not used
  /** @type {Preset[]} */ presets = [];
  applied = ""; // the id of the preset that the user has chosen or saved last
  naming = false;
  /** @type {McpState[]} */ servers = [];
  /** @type {Record<string, string>} */ defaults = {}; // of the model: option → text
  asked = "";

  enter() {
    this.listen("presets", () => this.readPresets());
    this.listen("chat", () => this.readDefaults());
    this.listen("tools", () => this.readTools());
    this.readPresets();
    this.readDefaults();
    this.readTools();
    this.afterwards = () => this.querySelector("select")?.focus();
  }

  template() {
    // fields of their own for each conversation: what was written into one, and not yet taken, stays there
    return html`${repeat([session.conversation], () => session.opened, (conversation) => this.fields(conversation))}`;
  }

  /** The preset in force: the one whose values are those of the conversation. */
  get preset() {
    const values = write(session.conversation);
    const same = this.presets.filter((one) => write(one) === values);
    return same.find(({ id }) => id === this.applied) ?? same[0];
  }

  /** @param {Conversation} conversation */
  fields({ system, think, tools, options = {} }) {
    const toolsError = this.toolsError.opened === session.opened ? this.toolsError.text : "";
    return html`
      <header class="row">
        <h2 class="grow">Conversation settings</h2>
        <button class="quiet" aria-label="Close the settings" @click=${() => this.dispatchEvent(new Event("close"))}>${icon("close")}</button>
      </header>
      ${this.presetRow()}
      <label><span>System prompt</span>
        <textarea rows="3" dir="auto" .value=${system} @change=${(event) => this.set({ system: event.target.value })}></textarea></label>
      <label><span>Thinking</span>
        ${select("", THINKING, think, (value) => this.set({ think: value }))}</label>
      <fieldset>
        <legend>Sampling</legend>
        <p class="wide muted">Empty fields use the model's defaults.</p>
        ${SAMPLING.map((field) => this.number(field, options))}
        <label class="wide"><span>Stop sequences, one per line</span>
          <textarea rows="1" .value=${(options.stop ?? []).join("\n")} @change=${(event) => this.setStops(event)}></textarea></label>
      </fieldset>
      ${this.reloadNote(options.num_ctx)}
      ${this.servers.map((one) => this.switches(one))}
      <label><span>Tools (JSON). You enter their results.</span>
        <textarea rows="4" spellcheck="false" aria-describedby="tools-error" aria-invalid=${toolsError !== ""} .value=${tools}
          @change=${(event) => this.setTools(event)}></textarea></label>
      <p id="tools-error" class="error" role="alert">${toolsError}</p>
    `;
  }

  presetRow() {
    if (this.naming) {
      return html`<form class="row" @submit=${this.savePreset}>
        <label class="grow"><span>Preset name</span><input name="name" required maxlength="60" @keydown=${(event) => event.key === "Escape" && this.name(false)} /></label>
        <button class="primary">Save</button>
        <button type="button" @click=${() => this.name(false)}>Cancel</button>
      </form>`;
    }
    const chosen = this.preset;
    /** @type {[string, string][]} */
    const presets = this.presets.map(({ id, name }) => [id, name]);
    return html`<div class="row">
      <label class="grow"><span>Preset</span>
        ${select("", [["", "none"], ...presets], chosen?.id ?? "", (id) => this.apply(id))}</label>
      <button @click=${() => this.name(true)}>Save as …</button>
      ${chosen ? html`<button class="danger" @click=${() => attempt(removePreset(chosen.id))}>Delete</button>` : nothing}
    </div>`;
  }

  /** @param {typeof SAMPLING[number]} field @param {ChatOptions} options */
  number([name, label, least, most, step], options) {
    const value = options[name];
    return html`<label><span>${label}</span>
      <input type="number" inputmode="decimal" min=${least ?? nothing} max=${most ?? nothing} step=${step === 1 ? 1 : "any"}
        placeholder=${this.defaults[name] ?? "default"} .value=${value === undefined ? "" : String(value)}
        @change=${(event) => this.setOption(name, event.target)} /></label>`;
  }

  /** @param {number} [wanted] */
  reloadNote(wanted) {
    const reloaded = session.conversation.models.filter((name) => Number(findLive(name)?.context_length) < Number(wanted));
    return reloaded.map(
      (name) => html`<p class="muted">The next message loads ${name} again: its context is now ${count(findLive(name)?.context_length)} tokens.</p>`,
    );
  }

  /** @param {Partial<ChatValues>} fields */
  set(fields) {
    attempt(change(fields));
  }

  /** @param {string} name @param {HTMLInputElement} field */
  setOption(name, field) {
    if (!field.reportValidity()) return;
    const { [name]: _, ...options } = session.conversation.options ?? {};
    if (field.value !== "") options[name] = Number(field.value);
    this.set({ options });
  }

  /** @param {FieldEvent} event */
  setStops(event) {
    const { stop: _, ...options } = session.conversation.options ?? {};
    const stop = event.target.value.split("\n").filter(Boolean);
    if (stop.length) options.stop = stop;
    this.set({ options });
  }

  /** @param {FieldEvent} event */
  setTools(event) {
    const { value } = event.target;
    try {
      if (value.trim() && !Array.isArray(JSON.parse(value))) throw new SyntaxError("it is not a list");
      this.toolsError.text = "";
      this.set({ tools: value.trim() });
    } catch (error) {
      this.change({ toolsError: { opened: session.opened, text: `cannot read the tools: ${/** @type {Error} */ (error).message}` } });
    }
  }

  /** @param {boolean} naming */
  name(naming) {
    this.change({ naming });
    this.afterwards = () => /** @type {HTMLElement | null} */ (this.querySelector(naming ? "[name=name]" : "select"))?.focus();
  }

  /** @param {FormEvent} event */
  async savePreset(event) {
    event.preventDefault();
    const name = String(new FormData(event.target).get("name")).trim();
    const values = pick(session.conversation);
    await attempt(savePreset({ name, ...values }).then(({ id }) => (this.applied = id)));
    this.name(false);
  }

  /** Take over the values of a preset; of none, those of a new conversation. @param {string} id */
  apply(id) {
    this.applied = id;
    this.toolsError.text = "";
    this.set(pick(this.presets.find((one) => one.id === id) ?? makeConversation()));
  }

  async readPresets() {
    this.change({ presets: await listPresets().catch(() => []) }); // a browser that keeps nothing has none
  }

  async readTools() {
    this.change({ servers: await connectAll() });
  }

  /** @param {McpState} state */
  switches({ server, tools, problem }) {
    const { off = [] } = session.conversation;
    /** @param {string} name */
    const toggle = (name) => this.set({ off: off.includes(name) ? off.filter((one) => one !== name) : [...off, name] });
    return html`<fieldset class="switches">
      <legend>Tools of ${server.name}</legend>
      ${problem ? html`<p class="wide error">${problem}</p>` : nothing}
      ${tools.map((tool) => html`<label class="check wide" title=${tool.description}>
        <input type="checkbox" .checked=${!off.includes(nameTool(server, tool))} @change=${() => toggle(nameTool(server, tool))} /> ${tool.name}</label>`)}
    </fieldset>`;
  }

  /** Ask for the defaults of the model, if it is another one than before. */
  async readDefaults() {
    const [model] = session.conversation.models;
    if (!model || model === this.asked) return;
    this.asked = model;
    const { parameters } = await ask("api/show", { model }).catch(() => ({ parameters: "" }));
    if (model !== this.asked) return;
    this.change({ defaults: readParameters(parameters) });
  }
}

/** Return what a preset has of these values. @param {ChatValues} values @returns {ChatValues} */
const pick = ({ system, think, tools, off, options }) => ({ system, think, tools, off, options });

/** Return these values as a text that is the same for the same values. @param {ChatValues} values */
const write = ({ system, think, tools, off = [], options = {} }) => JSON.stringify([system, think, tools, off.toSorted(), Object.entries(options).sort()]);

/** Return the parameters of a model, which are lines of a name and a value. @returns {Record<string, string>} */
function readParameters(text = "") {
  return Object.fromEntries(text.split("\n").map((line) => /^(\S+)\s+(.*)$/.exec(line)?.slice(1)).filter((found) => found !== undefined));
}

customElements.define("chat-settings", ChatSettings);
