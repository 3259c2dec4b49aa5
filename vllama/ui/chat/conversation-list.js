/** The list of conversations: by day, with search; each can be renamed, exported and deleted. */

import "./stream-list.js";
import { linkTo } from "../route.js";
import { showShortcuts } from "../shortcuts.js";
import { icon } from "../parts/icon.js";
import { confirm } from "../parts/dialogs.js";
import { searchField } from "../parts/fields.js";
import { attempt, showError, showSuccess } from "../parts/notices.js";
import { plural } from "../format.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";
import { exportAll, exportMarkdown, exportOne, importFile } from "./export.js";
import { beginConversation, find, remove, rename, session } from "./session.js";

const DAY_MS = 86_400_000;
const PATIENCE_MS = 300; // until the texts are searched, too: the user may still be typing

class ConversationList extends View {
  static topics = ["chat"];

  words = "";
  /** @type {Map<string, string> | null} */ found = null; // ids of conversations whose texts have the words → the branch that has them
  open = ""; // the conversation whose actions are shown
  renaming = "";
  /** @type {AbortController | null} */ searching = null;

  template() {
    const shown = this.filter();
    return html`
      <a class="button new" href=${linkTo("chat", undefined, { model: session.conversation.models[0] })} @click=${this.begin}>${icon("plus")} New conversation</a>
      ${session.list.length || this.words
        ? searchField("Search conversations", "Search", this.words, (words) => this.search(words))
        : html`<p class="muted">Conversations are stored only in this browser.</p>`}
      ${this.words && !shown.length && !this.searching ? html`<p class="muted" role="status">No results for “${this.words}”.</p>` : nothing}
      <div class="scrolls">
        <stream-list></stream-list>
        ${groupByDay(shown).map(
          ([day, rows]) => html`<h2>${day}</h2>
            <ul>${repeat(rows, (row) => row.id, (row) => this.row(row))}</ul>`,
        )}
      </div>
      ${this.footer()}
      <button class="quiet shortcuts" @click=${showShortcuts}>Keyboard shortcuts</button>
    `;
  }

  /** @param {Conversation} row */
  row(row) {
    const { id, title } = row;
    const current = id === session.conversation?.id;
    if (id === this.renaming) {
      return html`<li class="current"><form class="grow" @submit=${(/** @type {FormEvent} */ event) => this.rename(event, id)}>
        <input name="title" aria-label="Title" dir="auto" maxlength="120" required .value=${title}
          @keydown=${(event) => event.key === "Escape" && this.endRenaming(id)}
          @blur=${(event) => event.target.form?.requestSubmit()} />
      </form></li>`;
    }
    return html`<li class=${current ? "current" : ""}>
      <a class="grow" dir="auto" href=${linkTo("chat", id, { at: this.found?.get(id) })} data-id=${id} title=${title} aria-current=${current ? "page" : "false"}
        @keydown=${(event) => event.key === "F2" && this.beginRenaming(id)}>${title}</a>
      <button class="quiet" aria-label="Actions for “${title}”" title="Actions" aria-expanded=${id === this.open}
        @click=${() => this.change({ open: this.open === id ? "" : id })}>${icon("more")}</button>
      ${id === this.open
        ? html`<div class="actions">
            <button class="quiet" @click=${() => this.beginRenaming(id)}>Rename</button>
            <button class="quiet" title="Export as Markdown" @click=${() => attempt(exportMarkdown(id))}>Markdown</button>
            <button class="quiet" title="Export as JSON" @click=${() => attempt(exportOne(id))}>JSON</button>
            <button class="quiet bad" @click=${() => this.discard([id], `“${title}”`)}>Delete</button>
          </div>`
        : nothing}
    </li>`;
  }

  footer() {
    const { list } = session;
    return html`<details class="all">
      <summary>Import and export</summary>
      <label class="button">Import<input class="hidden" type="file" accept=".json" @change=${this.import} /></label>
      ${list.length
        ? html`<button @click=${() => attempt(exportAll())}>Export all</button>
            <button class="danger" @click=${() => this.discard(list.map(({ id }) => id), plural(list.length, "conversation"))}>Delete all</button>`
        : nothing}
    </details>`;
  }

  filter() {
    const words = this.words.trim().toLowerCase();
    if (!words) return session.list;
    return session.list.filter(({ id, title }) => title.toLowerCase().includes(words) || this.found?.has(id));
  }

  /** Begin anew also where the address stays as it is: in a new conversation. @param {FieldEvent} event */
  begin(event) {
    if (/** @type {HTMLAnchorElement} */ (event.currentTarget).hash === location.hash) beginConversation(session.conversation.models[0]);
  }

  /** Filter by title at once; the texts follow when the user rests. @param {string} words */
  search(words) {
    this.words = words;
    this.found = null;
    this.searching?.abort();
    this.searching = null;
    if (this.words.trim()) {
      const searching = new AbortController();
      this.searching = searching;
      setTimeout(() => this.searchTexts(searching), PATIENCE_MS);
    }
    this.update();
  }

  /** @param {AbortController} searching */
  async searchTexts(searching) {
    if (searching.signal.aborted) return;
    try {
      const hits = await find(this.words.trim(), searching.signal);
      if (searching.signal.aborted) return;
      this.found = new Map(hits.map(({ conversation, turn }) => [conversation, turn]));
    } catch (error) {
      if (!searching.signal.aborted) showError(error);
    }
    this.change({ searching: null });
  }

  /** @param {string} id */
  beginRenaming(id) {
    this.change({ renaming: id });
    this.afterwards = () => /** @type {HTMLInputElement | null} */ (this.querySelector("[name=title]"))?.select();
  }

  /** @param {string} id */
  endRenaming(id) {
    this.change({ renaming: "" });
    this.afterwards = () => /** @type {HTMLElement | null} */ (this.querySelector(`[data-id="${id}"]`))?.focus();
  }

  /** @param {FormEvent} event @param {string} id */
  rename(event, id) {
    event.preventDefault();
    const title = String(new FormData(event.target).get("title")).trim();
    if (this.renaming !== id || !title) return;
    this.endRenaming(id);
    attempt(rename(id, title));
  }

  /** @param {FieldEvent} event */
  async import(event) {
    const [file] = event.target.files ?? [];
    event.target.value = "";
    if (file) await attempt(importFile(file).then((done) => showSuccess(describeImport(done))));
  }

  /** @param {string[]} ids @param {string} what */
  async discard(ids, what) {
    const sure = await confirm({
      title: `Delete ${what}?`,
      text: "Conversations exist only in this browser, so they cannot be restored.",
      action: "Delete",
    });
    if (sure) await attempt(remove(ids));
  }
}

/** @param {{ added: number, updated: number }} done */
function describeImport({ added, updated }) {
  if (!added && !updated) return "All conversations in the file already exist.";
  const parts = [added && `${plural(added, "conversation")} imported`, updated && `${plural(updated, "conversation")} updated`];
  return `${parts.filter(Boolean).join(", ")}.`;
}

/** Return the conversations, newest first, as groups with the name of their time. @param {Conversation[]} rows */
function groupByDay(rows) {
  const today = new Date().setHours(0, 0, 0, 0);
  const groups = Map.groupBy(rows, ({ updated = 0 }) => {
    if (updated >= today) return "Today";
    if (updated >= today - DAY_MS) return "Yesterday";
    if (updated >= today - 6 * DAY_MS) return "Last 7 days";
    return new Date(updated).toLocaleDateString("en", { month: "long", year: "numeric" });
  });
  return [...groups];
}

customElements.define("conversation-list", ConversationList);
