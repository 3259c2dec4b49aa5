/** The reference of the API: all operations in groups, with a search and a form to try each. */

import { searchField } from "../parts/fields.js";
import { section, table } from "../parts/table.js";
import { ask, explain, readKey, setKeyPrompt, storeKey } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";
import { listFields, loadDocument, matches, resolve } from "./document.js";
import "./try-form.js";

/** As in index.html. */
const PAGES = ["models", "chat", "activity", "graphs", "logs", "settings"];

class ApiReference extends View {
  search = "";
  /** @type {LocalModel[]} */ models = [];
  /** @type {Set<string>} */ opened = new Set();
  /** @type {Awaited<ReturnType<typeof loadDocument>> | null} */ document = null;
  failure = "";

  enter() {
    this.querySelector("noscript")?.remove();
    this.opened = new Set([location.hash.slice(1)]);
    setKeyPrompt(async () => null); // there is a field for it
    addEventListener("hashchange", () => this.open(location.hash.slice(1)), {
      signal: this.leaving.signal,
    });
    this.load();
  }

  async load() {
    try {
      this.change({ document: await loadDocument() });
      this.models = (await ask("api/tags")).models;
    } catch (error) {
      this.failure = explain(error);
    }
    this.update();
  }

  template() {
    const { version, text, groups = [] } = this.document ?? {};
    return html`
      <header class="frame">
        <a class="brand" href="./"><img src="icon.svg" alt="" width="22" height="22">vllama</a>
        <nav aria-label="Pages">
          ${PAGES.map((name) => html`<a href="./#/${name}">${name[0].toUpperCase()}${name.slice(1)}</a>`)}
          <a href="docs.html" aria-current="page">API</a>
        </nav>
        ${searchField("Search", "Search the routes", this.search, (search) => this.change({ search }))}
      </header>
      <main id="main" tabindex="-1">
        <h1>The API of vllama ${version}</h1>
        <p class="intro">${text} All routes for programs: <a href="../openapi.json">openapi.json</a>.</p>
        <form class="row" @submit=${this.useKey}>
          <label>
            <span>Key, if the server requires one</span>
            <input name="key" type="password" autocomplete="off" .value=${readKey() ?? ""}>
          </label>
          <button>Use this key</button>
        </form>
        <p role="status">${this.failure ?? ""}</p>
        ${groups.map((group) => this.group(group))} ${this.emptyText(groups)}
      </main>
    `;
  }

  /** @param {Operation[]} operations */
  select(operations) {
    return operations.filter((one) => !this.search.trim() || matches(one, this.search.trim()));
  }

  /** @param {OperationGroup[]} groups */
  emptyText(groups) {
    if (!this.search.trim() || groups.some(({ operations }) => this.select(operations).length)) return nothing;
    return html`<p role="status">No routes match “${this.search}”.</p>`;
  }

  /** @param {OperationGroup} group */
  group({ name, description, operations }) {
    const found = this.select(operations);
    if (!found.length) return nothing;
    return section(name, html`<p class="intro">${withCode(description)}</p>${found.map((one) => this.operation(one))}`);
  }

  /** @param {Operation} one */
  operation(one) {
    const id = one.operationId;
    const open = this.opened.has(id);
    return html`<details
      class="operation"
      id=${id}
      ?open=${open}
      @toggle=${(event) => this.toggle(id, event.target.open)}
    >
      <summary>
        <b class="method ${one.method}">${one.method.toUpperCase()}</b>
        <code>${one.path}</code>
        <span>${one.summary}</span>
      </summary>
      ${open ? html`<div>${this.details(one)}</div>` : nothing}
    </details>`;
  }

  /** @param {Operation} one */
  details(one) {
    const [[, body] = []] = Object.entries(one.requestBody?.content ?? {});
    return html`
      ${one.description ? html`<p>${withCode(one.description)}</p>` : nothing}
      ${body ? fieldTable("Request", one.root, body.schema) : nothing}
      ${Object.entries(one.responses)
        .filter(([status]) => Number(status) < 400)
        .map(([status, answer]) => this.answer(one, status, answer))}
      ${errorTable(one)}
      <try-form .operation=${one} .models=${this.models}></try-form>
    `;
  }

  /** @param {Operation} one @param {string} status @param {Described} described */
  answer(one, status, { description, content = {} }) {
    const tables = new Map(); // a stream often has the same fields as the whole answer
    for (const [type, { schema }] of Object.entries(content)) {
      const shown = firstForm(one.root, eventData(schema));
      const key = JSON.stringify(shown);
      tables.set(key, { types: [...(tables.get(key)?.types ?? []), type], shown });
    }
    return html`<h3>${status}: ${description}</h3>
      ${[...tables.values()].map(({ types, shown }) => fieldTable(types.join(", "), one.root, shown))}`;
  }

  /** @param {FormEvent} event */
  useKey(event) {
    event.preventDefault(); // the policy of the page forbids to send forms
    storeKey(String(new FormData(event.target).get("key")).trim());
    this.failure = "";
    this.load();
  }

  /** @param {string} id @param {boolean} open */
  toggle(id, open) {
    if (open === this.opened.has(id)) return;
    if (open) this.opened.add(id);
    else this.opened.delete(id);
    this.update();
  }

  /** @param {string} id */
  open(id) {
    this.opened.add(id);
    this.update();
    requestAnimationFrame(() => document.getElementById(id)?.scrollIntoView());
  }
}

/** Return a text with what stands between backticks as code. */
const withCode = (text = "") =>
  text.split("`").map((part, number) => (number % 2 ? html`<code>${part}</code>` : part));

/** Return the schema of an event's data, which is what the events of a stream are about. @param {Schema} schema @returns {Schema} */
function eventData(schema) {
  const data = schema.properties?.data;
  return data?.contentSchema ?? data?.anyOf?.find((one) => one.contentSchema)?.contentSchema ?? schema;
}

/** Return a schema, or the first of those that it may have. @param {Root} root @param {Schema} [schema] @returns {Schema} */
function firstForm(root, schema) {
  const { description, ...found } = resolve(root, schema);
  return found.anyOf && !found.properties ? resolve(root, found.anyOf[0]) : found;
}

/** @param {Operation} operation */
function errorTable({ responses }) {
  const rows = Object.entries(responses).filter(([status]) => Number(status) >= 400);
  return html`<h3>Errors</h3>
    <ul>
      ${rows.map(([status, { description }]) => html`<li><code>${status}</code> ${description}</li>`)}
    </ul>`;
}

/** @param {Field} field */
const fieldName = ({ name, required }) => html`<code>${name}</code> ${required ? html`<span class="required">required</span>` : nothing}`;

/** @param {string} title @param {Root} root @param {Schema} schema */
function fieldTable(title, root, schema) {
  const shown = firstForm(root, schema);
  const rows = listFields(root, shown.properties ? shown : resolve(root, shown.items));
  if (!rows.length) return html`<p><small>${title}</small></p>`;
  return html`<div class="wide" tabindex="0" role="group" aria-label=${title}>
    ${table("fields", [[title, fieldName], ["Type", ({ type }) => type], ["Meaning", ({ help }) => withCode(help)]], rows)}
  </div>`;
}

customElements.define("api-reference", ApiReference);
