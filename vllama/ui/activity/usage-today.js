/** What was used today (UTC), by key, group, user and model. */

import { count, duration } from "../format.js";
import { ask } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

const REFRESH_MS = 10_000;
/** @type {["group" | "user", string][]} shown where a row has one */
const OPTIONAL = [["group", "Group"], ["user", "User"]];

class UsageToday extends View {
  /** @type {UsageRow[]} */ rows = [];
  currency = "";

  enter() {
    this.load();
    this.every(REFRESH_MS, () => this.load());
  }

  async load() {
    const today = new Date().toISOString().slice(0, 10);
    try {
      ({ usage: this.rows, currency: this.currency } = await ask(`api/usage?by=key,group,user,model&since=${today}`));
    } catch {
      return; // the frame of the page says that the connection is lost; the last numbers stay
    }
    this.update();
  }

  get hasSpend() {
    return this.rows.some((row) => row.spend !== null);
  }

  template() {
    if (!this.rows.length) return nothing;
    const more = OPTIONAL.filter(([name]) => this.rows.some((row) => row[name]));
    return html`<section aria-labelledby="usage-title">
      <h2 id="usage-title">Usage today <span class="muted">since midnight UTC</span></h2>
      <table class="cards usage">
        <thead>
          <tr>
            <th scope="col">Key</th>
            ${more.map(([, title]) => html`<th scope="col">${title}</th>`)}
            <th scope="col">Model</th>
            <th scope="col" class="number">Requests</th>
            <th scope="col" class="number">Prompt</th>
            <th scope="col" class="number">Cached</th>
            <th scope="col" class="number">Generated</th>
            <th scope="col" class="number">Time</th>
            ${this.hasSpend ? html`<th scope="col" class="number">Spend (${this.currency})</th>` : nothing}
          </tr>
        </thead>
        <tbody>
          ${this.rows.map(
            (row) => html`<tr>
              <th scope="row">${row.key || "no key"}</th>
              ${more.map(([name, title]) => html`<td data-label=${title}>${row[name] || "–"}</td>`)}
              <td data-label="Model">${row.model}</td>
              <td data-label="Requests" class="number">${count(row.requests)}</td>
              <td data-label="Prompt" class="number">${count(row.prompt_tokens)}</td>
              <td data-label="Cached" class="number">${count(row.cached_tokens)}</td>
              <td data-label="Generated" class="number">${count(row.generated_tokens)}</td>
              <td data-label="Time" class="number">${duration(row.seconds)}</td>
              ${this.hasSpend ? html`<td data-label="Spend" class="number">${row.spend?.toFixed(4) ?? "no price"}</td>` : nothing}
            </tr>`,
          )}
        </tbody>
      </table>
    </section>`;
  }
}

customElements.define("usage-today", UsageToday);
