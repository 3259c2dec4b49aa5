/** A chart over time, drawn by uPlot, with the marks of loads and evictions as vertical lines. */

import { clock } from "../format.js";

const SHORTEST_S = 300;
const HEIGHT = 170;
const TIME_STEPS = [1, 5, 10, 30, 60, 120, 240, 480].map((minutes) => minutes * 60); // labels have minutes
const STROKES = ["--series-1", "--series-2", "--series-3", "--series-4"];

await loadScript(new URL("../vendor/uplot/uPlot.iife.min.js", import.meta.url)); // sets globalThis.uPlot

class TimeChart extends HTMLElement {
  // to be set before `show` (see Chart)
  /** @type {string[]} */ series = []; // names of the lines
  /** @type {Format} */ format = String;
  dots = false;
  range = 0; // seconds
  /** @type {number[] | undefined} */ steps = undefined;
  /** @type {Mark[]} */ marks = [];

  leaving = new AbortController();
  resizing = new ResizeObserver(() => this.plot?.setSize(this.size()));
  /** @type {Plot | null} */ plot = null;
  /** @type {[number[], ...Values[]] | null} */ data = null;

  connectedCallback() {
    this.leaving = new AbortController();
    const { signal } = this.leaving;
    this.resizing.observe(this);
    addEventListener("themechange", () => this.rebuild(), { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild(), { signal });
  }

  disconnectedCallback() {
    this.leaving.abort();
    this.resizing.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }

  /** Draw `data`: the times in Unix seconds, then the values of each line (null: unknown). @param {[number[], ...Values[]]} data @param {Mark[]} marks */
  show(data, marks) {
    this.data = data;
    this.marks = marks;
    if (this.plot) this.plot.setData(data);
    else this.rebuild();
    this.showLatest();
  }

  /** Have the legend show the newest values while nothing is pointed at. */
  showLatest() {
    if (this.plot && this.data && this.plot.cursor.idx == null) this.plot.setLegend({ idx: this.data[0].length - 1 });
  }

  size() {
    return { width: Math.max(200, this.clientWidth), height: HEIGHT };
  }

  rebuild() {
    if (!this.data || !this.isConnected) return;
    this.plot?.destroy();
    const style = getComputedStyle(this);
    const brush = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    /** Return a color of the theme in hexadecimal. @param {string} name */
    const color = (name) => {
      this.style.color = `var(${name})`;
      brush.fillStyle = style.color;
      return brush.fillStyle;
    };
    const [good, bad] = ["--good", "--bad"].map(color);
    const axis = {
      stroke: color("--muted"),
      grid: { stroke: color("--line"), width: 1 },
      ticks: { show: false },
      font: `11px ${style.fontFamily}`,
    };
    const { stepped } = uPlot.paths;
    this.plot = new uPlot(
      {
        ...this.size(),
        cursor: { y: false, drag: { x: false } },
        legend: { live: true },
        scales: { x: { range: () => listRange(this.data?.[0] ?? [], this.range) }, y: { range: fromZero } },
        axes: [
          { ...axis, size: 28, incrs: TIME_STEPS, values: (_, values) => values.map(hoursAndMinutes) },
          { ...axis, size: 64, incrs: this.steps, values: (_, values) => values.map(this.format) },
        ],
        series: [
          { value: (_, time) => clock(time) },
          ...this.series.map((label, index) => ({
            label,
            stroke: color(STROKES[index]),
            width: 1.5,
            fill: this.dots || index ? undefined : `${color(STROKES[index])}22`,
            dash: index === 2 ? [4, 3] : undefined, // colors are not the only difference
            spanGaps: false,
            points: { show: this.dots, size: 5, fill: color(STROKES[index]) },
            paths: this.dots ? () => null : stepped?.({ align: 1 }), // equal samples are left out
            /** @type {(plot: Plot, value: number | null) => string} */
            value: (_, value) => (value === null || value === undefined ? "–" : this.format(value)),
          })),
        ],
        hooks: { draw: [(plot) => this.drawMarks(plot, good, bad)], setCursor: [() => this.showLatest()] },
      },
      this.data,
      this,
    );
  }

  /** @param {Plot} plot @param {string} good @param {string} bad */
  drawMarks(plot, good, bad) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = 1;
    ctx.setLineDash([2, 3]);
    for (const mark of this.marks) {
      const x = Math.round(plot.valToPos(mark.time, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = mark.kind === "fail" || mark.kind === "evict" ? bad : good;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }
}

/** Return what the time axis shows: the last seconds, or less as long as less is known. @param {number[]} times @param {number} most @returns {[number, number]} */
function listRange(times, most) {
  const now = Date.now() / 1000;
  const known = Math.max(now - (times[0] ?? now), SHORTEST_S);
  return [now - Math.min(known, most), now];
}

/** @param {number} time */
const hoursAndMinutes = (time) => clock(time).slice(0, 5);
/** @type {(plot: Plot, least: number, most: number) => [number, number]} */
const fromZero = (_, __, most) => [0, most > 0 ? most * 1.1 : 1];

customElements.define("time-chart", TimeChart);

/** @param {URL} src */
function loadScript(src) {
  const script = Object.assign(document.createElement("script"), { src });
  return new Promise((resolve, reject) => {
    script.onload = resolve;
    script.onerror = () => reject(new Error("cannot load uPlot"));
    document.head.append(script);
  });
}
