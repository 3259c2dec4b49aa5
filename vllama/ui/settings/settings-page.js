/** Settings in groups: the value of each and its source; those that may be changed here are controls. */

import { isWithoutKey, state } from "../live/state.js";
import { nameEach, searchField, select } from "../parts/fields.js";
import { showSuccess } from "../parts/notices.js";
import { section, table } from "../parts/table.js";
import { ask, explain, isForbidden } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";
import "./key-list.js";
import "./mcp-servers.js";

const NEEDS_ADMIN = "Only keys with the scope admin can see the settings.";

class SettingsPage extends View {
  static topics = ["connection"];

  /** @type {SettingRow[] | null} */ settings = null;
  file = "";
  refused = "";
  isReadOnly = false;
  filter = "";
  problem = "";
  /** @type {Map<string, string>} */ drafts = new Map(); // by key: the value that is being written
  /** @type {Map<string, string>} */ problems = new Map(); // by key: why it was refused

  async enter() {
    try {
      this.take(await ask("api/config"));
    } catch (error) {
      this.problem = isForbidden(error) ? NEEDS_ADMIN : explain(error);
    }
    this.update();
  }

  /** @param {Settings} found */
  take({ settings, file, refused }) {
    Object.assign(this, { settings, file, refused });
    this.isReadOnly = settings.some(({ key, text }) => key === "read_only" && text === "true");
  }

  template() {
    if (!this.settings) {
      const problem = isWithoutKey() ? NEEDS_ADMIN : this.problem;
      return html`<h1>Settings</h1>
        <p class="muted" role="status">${problem || "Loading …"}</p>
        ${this.problem === NEEDS_ADMIN ? html`<key-list></key-list>` : nothing}
        ${problem ? html`<mcp-servers></mcp-servers>` : nothing}`;
    }
    const shown = this.settings.filter(({ key, help }) => `${key} ${help}`.toLowerCase().includes(this.filter.trim().toLowerCase()));
    const groups = [...new Set(shown.map(({ group }) => group))];
    return html`
      <h1>Settings</h1>
      <p>
        vllama ${state.version}. ${this.file ? html`Config file: <code>${this.file}</code>.` : "No config file exists yet."}
        ${this.isReadOnly
          ? "This server is read-only, so settings cannot be changed here."
          : html`Changes here are saved to ${this.file ? "that file" : "a new one"}. Change other settings on the server's machine: <code>vllama config edit</code>.`}
      </p>
      ${this.refused ? html`<p class="error" role="alert">The config file is not in effect: ${this.refused}</p>` : nothing}
      <key-list .readOnly=${this.isReadOnly}></key-list>
      <mcp-servers></mcp-servers>
      ${searchField("Filter settings", "Filter", this.filter, (filter) => this.change({ filter }))}
      ${groups.map((group) => section(group, this.table(shown.filter((row) => row.group === group))))}
      ${groups.length ? nothing : html`<p class="muted">No setting matches.</p>`}
    `;
  }

  /** @param {SettingRow[]} rows */
  table(rows) {
    /** @type {Column<SettingRow>[]} */
    const columns = [
      ["Setting", ({ key, help }) => html`${key} <small>${help}</small>`],
      ["Value", (row) => this.value(row)],
      ["Source", (row) => html`${row.source} ${row.changeable && row.effect === "next load" ? html`<small>from the next load</small>` : nothing}`],
    ];
    return table("cards settings", columns, rows, { key: ({ key }) => key, mark: ({ source }) => (source === "default" ? "" : "set") });
  }

  /** @param {SettingRow} row */
  value(row) {
    const problem = this.problems.get(row.key);
    return html`${row.changeable && !this.isReadOnly ? this.form(row) : html`<code>${row.text}</code>`}
      ${problem ? html`<p class="error" role="alert">${problem}</p>` : nothing}`;
  }

  /** @param {SettingRow} row */
  form(row) {
    const draft = this.drafts.get(row.key);
    const isChanged = draft !== undefined && draft !== row.text;
    /** @param {string} value */
    const write = (value) => {
      this.drafts.set(row.key, value);
      this.update();
    };
    /** @param {Event} event */
    const submit = (event) => {
      event.preventDefault();
      if (isChanged) this.save(row, readValue(draft));
    };
    const words = listWords(row.schema);
    return html`<form class="row" @submit=${submit}>
      ${words
        ? select(row.key, nameEach(words), draft ?? row.text, write)
        : html`<input aria-label=${row.key} .value=${draft ?? row.text} autocomplete="off" spellcheck="false" @input=${(event) => write(event.target.value)} />`}
      ${isChanged
        ? html`<button class="primary" aria-label="Save ${row.key}">Save</button>
            <button type="button" @click=${() => this.drop(row.key)}>Cancel</button>`
        : row.source === "default"
          ? nothing
          : html`<button type="button" class="quiet" aria-label="Use the default of ${row.key}" @click=${() => this.save(row, null)}>Use default</button>`}
    </form>`;
  }

  /** @param {string} key */
  drop(key) {
    this.drafts.delete(key);
    this.problems.delete(key);
    this.update();
  }

  /** @param {SettingRow} row @param {unknown} value */
  async save(row, value) {
    try {
      this.take(await ask("api/config", { settings: { [row.key]: value } }, { method: "PATCH" }));
      this.drop(row.key);
      showSuccess(`${row.key} is ${this.settings?.find(({ key }) => key === row.key)?.text} now.`);
    } catch (error) {
      this.problems.set(row.key, explain(error));
    }
    this.update();
  }
}

/** Return the words that a schema allows, null if it allows other values too. @param {Schema} schema */
function listWords(schema) {
  const parts = schema.anyOf ?? [schema];
  if (!parts.every((part) => part.enum || part.type === "boolean")) return null;
  const words = parts.flatMap((part) => part.enum ?? ["true", "false"]);
  return words.filter((word) => typeof word === "string");
}

/** Return a value as TOML should have it: numbers and booleans are no texts. @param {string} text */
function readValue(text) {
  const value = text.trim();
  if (/^-?[0-9]{1,15}$/.test(value)) return Number(value);
  return { true: true, false: false }[value] ?? value;
}

customElements.define("settings-page", SettingsPage);
