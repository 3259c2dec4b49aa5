/** Logs: vllama's own and those of each attempt to start an engine, live, with search. */

import "../parts/windowed-list.js";
import { count, plural } from "../format.js";
import { showError } from "../parts/notices.js";
import { linkTo, readRoute } from "../route.js";
import { ask, readLines, send } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

const FIRST_LINES = 10_000;
const MOST_LINES = 50_000;
const ERROR = /\b(error|fatal|critical|failed|traceback|exception|panic)\b/i;
const WARNING = /\bwarn(ing)?\b/i;

class LogsPage extends View {
  logs = [];
  lines = [];
  pattern = "";
  following = true;
  onlyMatches = true;
  status = "";

  enter() {
    addEventListener("hashchange", () => this.open(), { signal: this.leaving.signal });
    this.listen("models", () => this.refresh()); // a load has begun a new log
    this.refresh().then(() => this.open());
  }

  leave() {
    this.reading?.abort();
  }

  template() {
    return html`
      <h1>Logs</h1>
      <div class="row">
        <label
          ><span>Log</span>
          <select @change=${(event) => (location.hash = linkTo("logs", event.target.value))}>
            ${this.logs.map(
              (log) => html`<option value=${log.name} ?selected=${log.name === this.name}>${log.title}</option>`,
            )}
          </select></label
        >
        <label class="grow"
          ><span>Search</span>
          <input type="search" placeholder="Text in the lines" @input=${(event) => this.search(event.target.value)}
        /></label>
        <label class="check"
          ><input type="checkbox" .checked=${this.onlyMatches} @change=${(event) => this.set("onlyMatches", event)} />
          Only lines with it</label
        >
        <label class="check"
          ><input type="checkbox" .checked=${this.following} @change=${(event) => this.set("following", event)} />
          Follow</label
        >
      </div>
      <p class="muted" role="status">${this.summary()}</p>
      <windowed-list class="log" role="region" aria-label="Lines of the log"></windowed-list>
    `;
  }

  summary() {
    const found = this.pattern ? `, ${count(this.countMatches())} with “${this.pattern}”` : nothing;
    return html`${plural(this.lines.length, "line")}${found}${this.status ? ` · ${this.status}` : nothing}`;
  }

  rendered() {
    const list = this.querySelector("windowed-list");
    list.following = this.following;
    const shown = this.pattern && this.onlyMatches ? this.lines.filter((line) => this.matches(line)) : this.lines;
    list.show(shown, (line) => this.line(line));
  }

  line(text) {
    const tone = ERROR.test(text) ? "error" : WARNING.test(text) ? "warning" : "";
    if (!this.pattern || !this.matches(text)) return html`<span class=${tone}>${text}</span>`;
    const at = text.toLowerCase().indexOf(this.pattern);
    const end = at + this.pattern.length;
    return html`<span class=${tone}
      >${text.slice(0, at)}<mark>${text.slice(at, end)}</mark>${text.slice(end)}</span
    >`;
  }

  matches(line) {
    return line.toLowerCase().includes(this.pattern);
  }

  countMatches() {
    return this.lines.filter((line) => this.matches(line)).length;
  }

  search(text) {
    this.pattern = text.toLowerCase();
    this.update();
  }

  set(field, event) {
    this[field] = event.target.checked;
    if (field === "following" && this.following) this.querySelector("windowed-list").scrollToEnd();
    this.update();
  }

  async refresh() {
    try {
      ({ logs: this.logs } = await ask("api/logs"));
    } catch (error) {
      showError(error);
    }
    this.update();
  }

  /** Read the log that the address names, else the first, and follow it. */
  async open() {
    const { page, parts } = readRoute();
    const name = page === "logs" && parts[0] ? parts[0] : this.logs[0]?.name;
    if (!name || name === this.name) return;
    this.reading?.abort();
    this.reading = new AbortController();
    const { signal } = this.reading;
    Object.assign(this, { name, lines: [], status: "reading" });
    this.update();
    try {
      const path = `api/logs/${encodeURIComponent(name)}?lines=${FIRST_LINES}&follow=1`;
      const response = await send(path, { signal });
      this.status = "live";
      for await (const line of readLines(response)) {
        if (signal.aborted) return;
        this.lines.push(line);
        if (this.lines.length > MOST_LINES) this.lines.splice(0, MOST_LINES / 10);
        this.update();
      }
      this.status = "complete";
    } catch (error) {
      if (signal.aborted) return;
      this.status = "interrupted";
      showError(error);
    }
    this.update();
  }
}

customElements.define("logs-page", LogsPage);
