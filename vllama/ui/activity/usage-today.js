/** What was used today (UTC), by key, group, user and model. */

import { count, duration } from "../format.js";
import { ask } from "../server.js";
import { section, table } from "../parts/table.js";
import { nothing } from "../vendor/lit-html/lit-html.js";
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

  template() {
    const { rows } = this;
    if (!rows.length) return nothing;
    /** @type {Column<UsageRow>[]} */
    const columns = [
      ["Key", (row) => row.key || "no key"],
      ...OPTIONAL.filter(([name]) => rows.some((row) => row[name])).map(columnOf),
      ["Model", (row) => row.model],
      ["Requests", (row) => count(row.requests), "number"],
      ["Prompt", (row) => count(row.prompt_tokens), "number"],
      ["Cached", (row) => count(row.cached_tokens), "number"],
      ["Generated", (row) => count(row.generated_tokens), "number"],
      ["Time", (row) => duration(row.seconds), "number"],
    ];
    const hasSpend = rows.some((row) => row.spend !== null);
    if (hasSpend) columns.push([`Spend (${this.currency})`, (row) => row.spend?.toFixed(4) ?? "no price", "number"]);
    return section("Usage today", table("cards", columns, rows), "since midnight UTC");
  }
}

/** @param {typeof OPTIONAL[number]} pair @returns {Column<UsageRow>} */
const columnOf = ([name, label]) => [label, (row) => row[name] || "–"];

customElements.define("usage-today", UsageToday);
