/** Settings: the value of each in the running server, and where it comes from. */

import { readSettings } from "../live/settings.js";
import { state } from "../live/state.js";
import { explain, isForbidden } from "../server.js";
import { html } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

const NEEDS_ADMIN = "Settings are shown to keys with the scope admin.";

class SettingsPage extends View {
  static topics = ["connection"];

  settings = null;
  filter = "";
  problem = "";

  async enter() {
    try {
      ({ settings: this.settings, file: this.file } = await readSettings());
    } catch (error) {
      this.problem = isForbidden(error) ? NEEDS_ADMIN : explain(error);
    }
    this.update();
  }

  template() {
    if (!this.settings) {
      return html`<h1>Settings</h1>
        <p class="muted" role="status">${this.problem || "Loading …"}</p>`;
    }
    return html`
      <h1>Settings</h1>
      <p>
        vllama ${state.version}. Settings are changed by flags, by variables or in the file, not here:
        <code>vllama config</code> says how.
        ${this.file ? html`The file is <code>${this.file}</code>.` : "There is no file yet."}
      </p>
      ${this.table()}
    `;
  }

  table() {
    const shown = this.settings.filter(({ key, help }) =>
      `${key} ${help}`.toLowerCase().includes(this.filter),
    );
    return html`<input
        type="search"
        aria-label="Filter the settings"
        placeholder="Filter"
        @input=${(event) => this.setFilter(event.target.value)}
      />
      <table class="cards settings">
        <thead>
          <tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">Comes from</th><th scope="col">What it is</th></tr>
        </thead>
        <tbody>
          ${shown.map(
            (row) => html`<tr class=${row.source === "default" ? "" : "set"}>
              <th scope="row">${row.key}</th>
              <td data-label="Value"><code>${row.text}</code></td>
              <td data-label="Comes from">${row.source}</td>
              <td data-label="What it is">${row.help}</td>
            </tr>`,
          )}
        </tbody>
      </table>`;
  }

  setFilter(text) {
    this.filter = text.trim().toLowerCase();
    this.update();
  }
}

customElements.define("settings-page", SettingsPage);
