/** The keys of the server: made, changed, rotated and revoked by an administrator. */

import { count } from "../format.js";
import { copyFrom } from "../parts/copy.js";
import { confirm, showDialog } from "../parts/dialogs.js";
import { attempt, showError, showSuccess } from "../parts/notices.js";
import { table } from "../parts/table.js";
import { ask, explain, storeKey } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";
import { keyForm, readForm } from "./key-form.js";

class KeyList extends View {
  readOnly = false;
  /** @type {Answer<"api/keys"> | null} */ found = null;
  /** @type {Partial<KeyRow> | null} */ editing = null; // the row that is changed, {} for a new key
  problem = "";

  async enter() {
    try {
      this.change({ found: await ask("api/keys") });
    } catch {
      // the rest of the page says so
    }
  }

  get mayChange() {
    return this.found?.required && !this.readOnly && this.found.own?.scopes.includes("admin");
  }

  template() {
    if (!this.found) return nothing;
    const { required, keys, own } = this.found;
    return html`<section aria-labelledby="keys-title">
      <div class="row">
        <h2 id="keys-title" class="grow">Keys</h2>
        ${this.mayChange ? html`<button @click=${() => this.edit({})}>Add a key</button>` : nothing}
      </div>
      ${required
        ? nothing
        : html`<p class="muted">This server does not require a key. Add the first one on its machine: <code>vllama keys add NAME --scope admin</code></p>`}
      ${repeat(this.editing ? [this.editing] : [], (row) => row.name, (row) => keyForm(row, this.problem, (event) => this.submit(event), () => this.edit(null)))}
      ${keys.length ? this.table(keys, own) : required ? html`<p class="muted">No named keys.</p>` : nothing}
    </section>`;
  }

  /** @param {KeyRow[]} keys @param {KeyRow | null} own */
  table(keys, own) {
    /** @type {Column<KeyRow>[]} */
    const columns = [
      ["Name", (row) => html`${row.name} <small>${row.shown}${describeOld(row)}${row.name === own?.name ? " · this page's key" : ""}</small>`],
      ["Scopes", (row) => row.scopes.join(", ")],
      ["Models", (row) => row.models.join(", ") || "all"],
      ["Limits", (row) => describeLimits(row) || "none"],
      ["Expires", (row) => (row.revoked_at ? html`<span class="badge bad">revoked</span>` : row.expires_at ? when(row.expires_at) : "never")],
    ];
    if (this.mayChange) columns.push(["Actions", (row) => this.actions(row, row.name === own?.name), "actions"]);
    return table("cards keys", columns, keys, { key: (row) => row.name });
  }

  /** @param {KeyRow} row @param {boolean} isOwn */
  actions(row, isOwn) {
    if (row.revoked_at) return html`<button aria-label="Remove ${row.name}" @click=${() => this.end(row)}>Remove</button>`;
    return html`<button aria-label="Change ${row.name}" @click=${() => this.edit(row)}>Change</button>
      <button aria-label="Rotate ${row.name}" @click=${() => this.rotate(row, isOwn)}>Rotate</button>
      ${isOwn ? nothing : html`<button class="danger" aria-label="Revoke ${row.name}" @click=${() => this.end(row)}>Revoke</button>`}`;
  }

  /** @param {Partial<KeyRow> | null} row */
  edit(row) {
    this.change({ editing: row, problem: "" });
    if (row) requestAnimationFrame(() => /** @type {HTMLElement | null} */ (this.querySelector(".key-form input"))?.focus());
  }

  /** @param {FormEvent} event */
  async submit(event) {
    event.preventDefault();
    const row = this.editing ?? {};
    const { name } = row;
    const fields = readForm(event.target, row);
    try {
      if (name) {
        await ask(path(name), fields, { method: "PATCH" });
        showSuccess(`Changed key ${name}.`);
      } else {
        const made = await ask("api/keys", fields);
        showSecret(/** @type {any} */ (made)); // a KeyRow: this was a POST
      }
      this.edit(null);
    } catch (error) {
      this.problem = explain(error);
    }
    await this.enter();
    this.update();
  }

  /** @param {KeyRow} row @param {boolean} isOwn */
  async rotate(row, isOwn) {
    const text = `Clients that use ${row.shown} are rejected once it stops working.`;
    const field = { name: "overlap", label: "Keep the old secret valid for", hint: "not at all; or 24h" };
    const answer = await confirm({ title: `Give ${row.name} a new secret?`, text, action: "Rotate", field });
    if (!answer) return;
    const overlap = String(answer.get("overlap")).trim();
    try {
      const made = await ask(`${path(row.name)}/rotate`, overlap ? { overlap } : {});
      if (isOwn) storeKey(made.secret ?? ""); // the page goes on with it
      showSecret(made);
    } catch (error) {
      showError(error);
    }
    this.enter();
  }

  /** @param {KeyRow} row */
  async end(row) {
    const [title, text, action] = row.revoked_at
      ? [`Remove ${row.name} from the list?`, "Its usage is kept.", "Remove"]
      : [`Revoke ${row.name}?`, "It stops working immediately and cannot be restored.", "Revoke"];
    if (!(await confirm({ title, text, action }))) return;
    await attempt(ask(path(row.name), undefined, { method: "DELETE" }));
    this.enter();
  }
}

/** @type {<Name extends string>(name: Name) => `api/keys/${string}`} */
const path = (name) => `api/keys/${encodeURIComponent(name)}`;
/** @param {string} time */
const when = (time) => new Date(time).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });

/** @param {KeyRow} row */
const describeOld = ({ replaced: old }) => (old && Date.parse(old.until) > Date.now() ? `, ${old.shown} until ${when(old.until)}` : "");

/** @param {KeyRow} row */
function describeLimits({ rate, tokens, concurrent, budget, group, priority }) {
  /** @param {string | null} limit @param {string} noun */
  const per = (limit, noun) => limit && limit.replace(/^[0-9]+/, (number) => `${count(Number(number))} ${noun}`);
  const parts = [per(rate, "requests"), per(tokens, "tokens"), concurrent && `${concurrent} parallel`];
  return [...parts, budget && `${budget} budget`, group && `group ${group}`, priority > 1 && `priority ${priority}`].filter(Boolean).join(", ");
}

/** Show a new secret, which nobody can read again. @param {KeyRow} made */
function showSecret({ name, secret }) {
  showDialog(
    `The key ${name}`,
    html`<p>Copy it now: it is shown only once.</p>
      <pre tabindex="0" class="secret">${secret}</pre>
      <button type="button" @click=${(event) => copyFrom(event.currentTarget, secret ?? "")}>Copy</button>`,
  );
}

customElements.define("key-list", KeyList);
