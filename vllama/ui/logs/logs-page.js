/** Logs: vllama's own and those of each attempt to start an engine, live, with search. */

import "../parts/windowed-list.js";
import { clock, count, plural } from "../format.js";
import { isWithoutKey } from "../live/state.js";
import { check, searchField, select } from "../parts/fields.js";
import { showError } from "../parts/notices.js";
import { linkTo, readRoute } from "../route.js";
import { ask, isForbidden, readLines, send } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

const OWN = "vllama"; // the name of the server's own log
const FIRST_LINES = 20_000;
const MOST_LINES = 50_000;
const ERROR = /\b(error|fatal|critical|failed|traceback|exception|panic)\b/i;
const WARNING = /\bwarn(ing)?\b/i;

class LogsPage extends View {
  static topics = ["connection"];

  /** @type {Answer<"api/logs">["logs"]} */ logs = [];
  /** @type {string[]} */ lines = [];
  text = ""; // what is searched
  following = true;
  onlyMatches = true;
  /** @type {string | undefined} */ name;
  /** @type {string | null} */ attempt = null;
  /** @type {AbortController | null} */ reading = null;
  found = -1; // the line of the search that was gone to last, in what is shown
  status = "";
  forbidden = false;

  enter() {
    addEventListener("hashchange", () => this.open(), { signal: this.leaving.signal });
    this.listen("models", () => this.refresh()); // a load has begun a new log
    this.refresh().then(() => this.open());
  }

  get pattern() {
    return this.text.toLowerCase();
  }

  leave() {
    this.reading?.abort();
  }

  template() {
    if (this.forbidden || isWithoutKey()) {
      return html`<h1>Logs</h1>
        <p class="muted">Only keys with the scope <code>admin</code> can see the logs.</p>`;
    }
    /** @type {[string, string][]} */
    const logs = this.logs.map(({ name }) => [name, name === OWN ? "vllama itself" : name]);
    return html`
      <h1>Logs</h1>
      <div class="row">
        <label><span>Log</span> ${select("", logs, this.name ?? "", (name) => (location.hash = linkTo("logs", name)))}</label>
        ${this.attemptChoice()}
        <label class="grow" @keydown=${this.press}><span>Search</span>
          ${searchField("", "Search the log; press Enter for the next match", this.text, (text) => this.change({ text, found: -1 }))}
        </label>
        <button title="Previous match (Shift+Enter)" aria-label="Previous match" ?disabled=${!this.pattern} @click=${() => this.step(-1)}>↑</button>
        <button title="Next match (Enter)" aria-label="Next match" ?disabled=${!this.pattern} @click=${() => this.step(1)}>↓</button>
        ${check("Only lines with it", this.onlyMatches, (onlyMatches) => this.change({ onlyMatches, found: -1 }))}
        ${check("Follow", this.following, (following) => this.follow(following))}
      </div>
      <p class="muted" role="status">${this.summary()}</p>
      <windowed-list class="log" role="region" aria-label="Lines of the log"></windowed-list>
    `;
  }

  /** The attempts to start the engine of a model: the newest is followed, earlier ones are kept. */
  attemptChoice() {
    const attempts = this.logs.find((log) => log.name === this.name)?.attempts ?? [];
    if (attempts.length < 2) return nothing;
    /** @type {[string, string][]} */
    const values = attempts.toReversed().map(({ attempt, written_at: time }) => [String(attempt), `${attempt}, until ${clock(time)}`]);
    /** @param {string} attempt */
    const choose = (attempt) => (location.hash = linkTo("logs", this.name, { attempt: attempt || undefined }));
    return html`<label><span>Attempt</span> ${select("", [["", "newest"], ...values], this.attempt ?? "", choose)}</label>`;
  }

  summary() {
    const matches = this.pattern ? this.lines.filter((line) => this.matches(line)).length : 0;
    const found = this.pattern ? `, ${matches ? count(matches) : "none"} with “${this.pattern}”` : nothing;
    return html`${plural(this.lines.length, "line")}${found}${this.status ? ` · ${this.status}` : nothing}`;
  }

  rendered() {
    const list = this.querySelector("windowed-list");
    if (!list) return;
    list.following = this.following;
    list.show(this.listShown(), (line, index) => this.line(line, index === this.found));
  }

  listShown() {
    return this.pattern && this.onlyMatches ? this.lines.filter((line) => this.matches(line)) : this.lines;
  }

  /** @param {string} text @param {boolean} isFound */
  line(text, isFound) {
    const tone = `${ERROR.test(text) ? "error" : WARNING.test(text) ? "warning" : ""} ${isFound ? "found" : ""}`;
    if (!this.pattern || !this.matches(text)) return html`<span class=${tone}>${text}</span>`;
    const at = text.toLowerCase().indexOf(this.pattern);
    const end = at + this.pattern.length;
    return html`<span class=${tone}
      >${text.slice(0, at)}<mark>${text.slice(at, end)}</mark>${text.slice(end)}</span
    >`;
  }

  /** @param {string} line */
  matches(line) {
    return line.toLowerCase().includes(this.pattern);
  }

  /** @param {FieldEvent} event */
  press(event) {
    if (event.key !== "Enter" || !this.pattern) return;
    event.preventDefault();
    this.step(event.shiftKey ? -1 : 1);
  }

  /** Go to the next line with the text, or to the previous one; after the last comes the first. @param {number} direction */
  step(direction) {
    const shown = this.listShown();
    const places = shown.flatMap((line, index) => (this.matches(line) ? [index] : []));
    if (!places.length) return;
    const next =
      direction > 0
        ? places.find((index) => index > this.found)
        : places.findLast((index) => index < this.found || this.found < 0);
    this.found = next ?? /** @type {number} */ (places.at(direction > 0 ? 0 : -1));
    this.change({ following: false }); // or the next line would scroll it out of sight
    this.querySelector("windowed-list")?.scrollToRow(this.found);
  }

  /** @param {boolean} following */
  follow(following) {
    this.change({ following, found: -1 });
    if (following) this.querySelector("windowed-list")?.scrollToEnd();
  }

  async refresh() {
    try {
      ({ logs: this.logs } = await ask("api/logs"));
    } catch (error) {
      this.forbidden = isForbidden(error);
      if (!this.forbidden) showError(error);
    }
    this.update();
  }

  /** Read the log that the address names, else the first, and follow it. */
  async open() {
    const { page, parts, query } = readRoute();
    if (page !== "logs") return;
    const name = parts[0] || this.logs[0]?.name;
    const attempt = query.get("attempt");
    if (this.forbidden || !name || (name === this.name && attempt === this.attempt)) return;
    this.reading?.abort();
    this.reading = new AbortController();
    const { signal } = this.reading;
    Object.assign(this, { name, attempt, lines: [], status: "reading" });
    this.update();
    try {
      const which = attempt ? `attempt=${attempt}` : "follow=1";
      const path = `api/logs/${encodeURIComponent(name)}?lines=${FIRST_LINES}&${which}`;
      const response = await send(path, { signal });
      this.status = attempt ? "" : "live";
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
