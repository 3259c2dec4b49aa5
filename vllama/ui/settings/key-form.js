/** The form of a key: what it may do, and how much. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";

/** @type {Record<string, string>} */
const SCOPES = { infer: "use models", read: "see server activity", admin: "everything", engine: "reach the engines’ own routes" };
/** @type {{ name: "models" | "rate" | "tokens" | "concurrent" | "budget" | "group" | "priority", label: string, hint: string }[]} */
const TEXTS = [
  { name: "models", label: "Models", hint: "all; or patterns: qwen3*, llama*" },
  { name: "rate", label: "Requests", hint: "no limit; or 60/min" },
  { name: "tokens", label: "Tokens", hint: "no limit; or 1M/day" },
  { name: "concurrent", label: "Maximum parallel requests", hint: "no limit; or 4" },
  { name: "budget", label: "Budget", hint: "no limit; or 50/month" },
  { name: "group", label: "Group", hint: "none; or a name" },
  { name: "priority", label: "Priority", hint: "1; at most 100" },
];

/** Return the form for a key, {} for a new one. @param {Partial<KeyRow>} row @param {string} problem @param {(event: FormEvent) => void} submit @param {() => void} close */
export function keyForm(row, problem, submit, close) {
  const isNew = !row.name;
  return html`<form class="card key-form" aria-label=${isNew ? "A new key" : `Change ${row.name}`} @submit=${submit}>
    <h3>${isNew ? "A new key" : row.name}</h3>
    ${isNew ? html`<label><span>Name</span><input name="name" required autocomplete="off" spellcheck="false" /></label>` : nothing}
    <fieldset>
      <legend>Scopes</legend>
      ${Object.entries(SCOPES).map(
        ([scope, text]) => html`<label class="check">
          <input type="checkbox" name="scopes" value=${scope} ?checked=${(row.scopes ?? ["infer"]).includes(scope)} />
          ${scope} <small>${text}</small>
        </label>`,
      )}
    </fieldset>
    <div class="fields">
      ${TEXTS.map(({ name, label, hint }) => html`<label>
        <span>${label}</span><input name=${name} placeholder=${hint} .value=${show(row[name])} autocomplete="off" spellcheck="false" />
      </label>`)}
      <label><span>Expires in</span><input name="expires" placeholder=${row.expires_at ? "unchanged; none, or 30d" : "never; or 30d"} autocomplete="off" /></label>
    </div>
    ${problem ? html`<p class="error" role="alert">${problem}</p>` : nothing}
    <menu>
      <button type="button" @click=${close}>Cancel</button>
      <button class="primary">${isNew ? "Add the key" : "Save"}</button>
    </menu>
  </form>`;
}

/** Return the fields of the form that differ from those of the key. @param {HTMLFormElement} form @param {Partial<KeyRow>} row */
export function readForm(form, row) {
  const data = new FormData(form);
  const read = (/** @type {string} */ name) => String(data.get(name)).trim();
  /** @type {Record<string, unknown>} */
  const fields = row.name ? {} : { name: read("name") };
  const scopes = data.getAll("scopes");
  if (String(scopes) !== String(row.scopes ?? [])) fields.scopes = scopes;
  for (const { name } of TEXTS) {
    const text = read(name);
    if (text === show(row[name])) continue;
    if (name === "models") fields.models = text ? text.split(",").map((one) => one.trim()) : null;
    else fields[name] = text || (name === "priority" ? "1" : null);
  }
  if (read("expires")) fields.expires = read("expires");
  return fields;
}

/** @param {unknown} value */
const show = (value) => (Array.isArray(value) ? value.join(", ") : String(value ?? ""));
