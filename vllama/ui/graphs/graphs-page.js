/** Graphs: the last minutes or hours as curves, and the same numbers as a table. */

import "./chart.js";
import { clock, count, duration, memorySize, rate } from "../format.js";
import { mayNotRead, state } from "../live/state.js";
import { badge } from "../parts/badge.js";
import { attempt } from "../parts/notices.js";
import { section, table } from "../parts/table.js";
import { poolTitle } from "../models/memory-overview.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { ask } from "../server.js";
import { View } from "../view.js";

const HOUR_S = 3600;
/** @type {[string, number][]} */
const RANGES = [["5 minutes", 300], ["1 hour", HOUR_S], ["6 hours", 6 * HOUR_S], ["24 hours", 24 * HOUR_S]];
const MOST_ROWS = 60; // of the table
const REFRESH_MS = 1_800_000; // the event stream has the last hour
const MOST_LINES = 4; // as many colors there are
/** @type {Column<Mark>[]} */
const MARK_COLUMNS = [
  ["Time", (mark) => clock(mark.time)],
  ["What", (mark) => badge(mark.kind)],
  ["Model", (mark) => mark.model],
  ["Why", (mark) => mark.reason || "–"],
];
const MEMORY_STEPS = Array.from({ length: 24 }, (_, power) => 2 ** (power + 20)); // from 1 MiB

class GraphsPage extends View {
  static topics = ["samples", "marks", "connection"];

  /** @type {Chart[]} */ charts = [];
  /** @type {Sample[]} */ samples = []; // those of the range
  /** @type {Mark[]} */ marks = [];
  /** @type {Pick<State, "samples" | "marks">} */ day = { samples: [], marks: [] }; // by the minute
  range = HOUR_S;

  enter() {
    this.every(REFRESH_MS, () => this.choose(this.range));
  }

  /** @param {number} range */
  choose(range) {
    this.change({ range });
    if (range > HOUR_S) attempt(ask("api/samples").then((day) => this.change({ day })));
  }

  /** Take what is in the range, and the sample before: it holds until the first of them. */
  select() {
    const since = Date.now() / 1000 - this.range;
    const all = this.join(this.day.samples, state.samples);
    const first = all.findIndex(({ time }) => time > since);
    this.samples = all.slice(first < 0 ? -1 : Math.max(0, first - 1));
    this.marks = this.join(this.day.marks, state.marks).filter(({ time }) => time > since);
  }

  /** Return the rows of the event stream, for a long range after the older ones of the day. @template {{ time: number }} Row @param {Row[]} day @param {Row[]} live */
  join(day, live) {
    return this.range > HOUR_S ? [...day.filter(({ time }) => time < (live[0]?.time ?? Infinity)), ...live] : live;
  }

  template() {
    this.select();
    this.charts = mayNotRead() ? [] : listCharts(this.samples);
    if (mayNotRead()) {
      return html`<h1>Graphs</h1>
        <p class="muted">Only keys with the scope <code>read</code> can see graphs.</p>`;
    }
    return html`
      <div class="row">
        <h1 class="grow">Graphs</h1>
        <div class="options" role="group" aria-label="Time shown">
          ${RANGES.map(([name, range]) => html`<button aria-pressed=${range === this.range} @click=${() => this.choose(range)}>${name}</button>`)}
        </div>
      </div>
      ${this.samples.length
        ? nothing
        : html`<p class="muted">No samples yet. The first one appears within a few seconds.</p>`}
      <div class="charts">
        ${repeat(
          this.charts,
          ({ title }) => title,
          ({ title, lines, format }) => html`<figure class="card">
            <figcaption><h2>${title}</h2></figcaption>
            <div role="img" aria-label="${title}: ${summarize(lines, format)}">
              <time-chart></time-chart>
            </div>
          </figure>`,
        )}
      </div>
      ${this.markTable()} ${this.numberTable()}
    `;
  }

  rendered() {
    const times = this.samples.map((sample) => sample.time);
    this.querySelectorAll("time-chart").forEach((chart, index) => {
      const { lines, format, dots, steps } = this.charts[index];
      const series = lines.map((line) => line.label);
      if (String(chart.series) !== String(series)) {
        Object.assign(chart, { series, format, dots, steps });
        chart.plot?.destroy();
        chart.plot = null;
      }
      chart.range = this.range;
      chart.show([times, ...lines.map((line) => line.values)], this.marks);
    });
  }

  markTable() {
    if (!this.marks.length) return nothing;
    return section("Loads and evictions", table("cards marks", MARK_COLUMNS, this.marks.toReversed()));
  }

  numberTable() {
    const { samples } = this;
    if (!samples.length) return nothing;
    /** @type {(chart: Chart) => Column<number>[]} */
    const columnsOf = ({ title, lines, format }) =>
      lines.map(({ label, values }) => [`${title}: ${label}`, (index) => show(values[index], format), "number"]);
    /** @type {Column<number>[]} */
    const columns = [["Time", (index) => clock(samples[index].time)], ...this.charts.flatMap(columnsOf)];
    return html`<details>
      <summary>Values</summary>
      <div class="scroll" tabindex="0" role="region" aria-label="Values of the time shown">
        ${table("plain", columns, thin(samples, this.range / MOST_ROWS))}
      </div>
    </details>`;
  }
}

/** Return what is drawn: title, lines (label, values) and how a value is written. @param {Sample[]} samples @returns {Chart[]} */
function listCharts(samples) {
  /** @type {LineMaker} */
  const line = (label, read) => ({ label, values: samples.map((one) => read(one) ?? null) });
  const pools = [...new Set(samples.flatMap((one) => Object.keys(one.memory ?? {})))];
  return [
    { title: "Tokens per second", format: rate, lines: [line("tokens/s", (one) => one.tokens_per_s)] },
    { title: "Time to first token", format: duration, dots: true, lines: [line("time to first token", (one) => one.first_token_s)] },
    {
      title: "Requests",
      format: count,
      lines: [line("running", (one) => one.requests), line("waiting", (one) => one.queued)],
    },
    ...listMachineCharts(samples, line),
    ...pools.map((pool) => ({
      title: `Memory, ${poolTitle(pool)}`,
      format: memorySize,
      steps: MEMORY_STEPS,
      lines: [
        line("measured", (one) => one.memory?.[pool]?.measured),
        line("planned", (one) => one.memory?.[pool]?.planned),
        line("free", (one) => one.memory?.[pool]?.free),
      ],
    })),
  ];
}

/** Return the charts of what the machine does, as far as it tells. @param {Sample[]} samples @param {LineMaker} line @returns {Chart[]} */
function listMachineCharts(samples, line) {
  const names = [...new Set(samples.flatMap((one) => Object.keys(one.machine?.gpus ?? {})))].sort();
  /** @param {string} name */
  const label = (name) => (names.length > 1 ? poolTitle(name) : "GPU");
  /** @param {string} title @param {"use" | "temperature_c" | "power_w"} key @param {Format} format */
  const gpus = (title, key, format) => ({
    title,
    format,
    lines: names.slice(0, MOST_LINES).map((name) => line(label(name), (one) => one.machine?.gpus[name]?.[key])),
  });
  const charts = [
    { title: "CPU", format: percent, lines: [line("all cores", (one) => one.machine?.cpu)] },
    gpus("GPU use", "use", percent),
    gpus("GPU temperature", "temperature_c", (value) => `${Math.round(value)} °C`),
    gpus("GPU power", "power_w", (value) => `${Math.round(value)} W`),
  ];
  return charts.filter(({ lines }) => lines.some(({ values }) => values.some((value) => value !== null)));
}

/** @type {Format} */
const percent = (value) => `${Math.round(value * 100)} %`;

/** Say in words what a chart shows. @param {Line[]} lines @param {Format} format */
function summarize(lines, format) {
  return lines
    .map(({ label, values }) => {
      const known = values.filter((value) => value !== null);
      if (!known.length) return `${label} unknown`;
      const most = known.reduce((a, b) => Math.max(a, b));
      return `${label} ${show(values.at(-1), format)} now, ${format(most)} peak`;
    })
    .join("; ");
}

/** Return the indices of the newest sample of each step, newest first. @param {Sample[]} samples @param {number} stepS */
function thin(samples, stepS) {
  const steps = new Map(samples.map((one, index) => [Math.floor(one.time / stepS), index]));
  return [...steps.values()].reverse();
}

/** @param {number | null | undefined} value @param {Format} format */
const show = (value, format) => (value === null || value === undefined ? "–" : format(value));

customElements.define("graphs-page", GraphsPage);
