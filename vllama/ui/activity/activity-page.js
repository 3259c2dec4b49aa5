/** Activity: the requests that wait and run, and the last that have ended. */

import { clock, count, duration, rate } from "../format.js";
import { mayNotRead, state } from "../live/state.js";
import { badge } from "../parts/badge.js";
import { forBrowser } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { View } from "../view.js";
import { showCapture } from "./capture.js";
import { queues } from "./queues.js";
import { describeClient, requestTable } from "./request-table.js";
import "./usage-today.js";

class ActivityPage extends View {
  static topics = ["requests", "models", "connection"];

  enter() {
    this.every(1000, () => state.requests.size && this.update()); // the seconds of each request
  }

  template() {
    if (mayNotRead()) {
      return html`<h1>Activity</h1>
        <p class="muted">Requests are shown to keys with the scope <code>read</code>.</p>
        <usage-today></usage-today>`;
    }
    const requests = [...state.requests.values()];
    return html`
      <h1>Activity</h1>
      ${queues()}
      <section aria-labelledby="now-title">
        <h2 id="now-title">Now <span class="muted">${requests.length}</span></h2>
        ${requests.length
          ? requestTable(requests)
          : html`<p class="muted">No request is running. Those of all clients are shown here.</p>`}
      </section>
      <usage-today></usage-today>
      ${this.ended()}
    `;
  }

  ended() {
    if (!state.ended.length) return nothing;
    const captured = state.ended.some((row) => row.capture);
    return html`<section aria-labelledby="ended-title">
      <h2 id="ended-title">Recent requests</h2>
      <table class="cards requests">
        <thead>
          <tr>
            <th scope="col">Client</th>
            <th scope="col">Model</th>
            <th scope="col">Outcome</th>
            <th scope="col" class="number">Started</th>
            <th scope="col" class="number">Took</th>
            <th scope="col" class="number">Prompt</th>
            <th scope="col" class="number">Tokens</th>
            <th scope="col" class="number">Tokens/s</th>
            <th scope="col" class="number">First token</th>
            ${captured ? html`<th scope="col"><span class="hidden">Actions</span></th>` : nothing}
          </tr>
        </thead>
        <tbody>
          ${repeat(state.ended, (row) => row.id, (row) => this.endedRow(row, captured))}
        </tbody>
      </table>
    </section>`;
  }

  endedRow(row, captured) {
    return html`<tr>
      <th scope="row">${describeClient(row)} <small>${row.dialect} · ${row.path}</small></th>
      <td data-label="Model">${row.model || "–"}</td>
      <td data-label="Outcome">
        ${badge(row.outcome)} <small>${row.error ? forBrowser(row.error) : row.outcome === "ok" ? "" : row.status || ""}</small>
      </td>
      <td data-label="Started" class="number">${clock(row.started_at)}</td>
      <td data-label="Took" class="number">${duration(row.seconds)}</td>
      <td data-label="Prompt" class="number">${row.prompt_tokens ? count(row.prompt_tokens) : "–"}</td>
      <td data-label="Tokens" class="number">${count(row.generated_tokens)}</td>
      <td data-label="Tokens/s" class="number">${rate(row.tokens_per_s)}</td>
      <td data-label="First token" class="number">${duration(row.first_token_s)}</td>
      ${captured
        ? html`<td class="actions">
            ${row.capture ? html`<button @click=${() => showCapture(row.capture)}>Open</button>` : nothing}
          </td>`
        : nothing}
    </tr>`;
  }
}

customElements.define("activity-page", ActivityPage);
