/** The form of a key: what it may do, and how much. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";

const SCOPES = { infer: "use models", read: "see what the server does", admin: "everything" };
const TEXTS = [
  { name: "models", label: "Models", hint: "all; or patterns: qwen3*, llama*" },
  { name: "rate", label: "Requests", hint: "no limit; or 60/min" },
  { name: "tokens", label: "Tokens", hint: "no limit; or 1M/day" },
  { name: "concurrent", label: "Requests at once", hint: "no limit; or 4" },
  { name: "priority", label: "Priority", hint: "1; at most 100" },
];

/** Return the form for a key, {} for a new one. */
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

/** Return the fields of the form that differ from those of the key. */
export function readForm(form, row) {
  const data = new FormData(form);
  const fields = row.name ? {} : { name: data.get("name").trim() };
  const scopes = data.getAll("scopes");
  if (String(scopes) !== String(row.scopes ?? [])) fields.scopes = scopes;
  for (const { name } of TEXTS) {
    const text = data.get(name).trim();
    if (text === show(row[name])) continue;
    if (name === "models") fields.models = text ? text.split(",").map((one) => one.trim()) : null;
    else fields[name] = text || (name === "priority" ? "1" : null);
  }
  if (data.get("expires").trim()) fields.expires = data.get("expires").trim();
  return fields;
}

const show = (value) => (Array.isArray(value) ? value.join(", ") : String(value ?? ""));
