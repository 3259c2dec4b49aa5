/**
 * A list of which only the visible rows exist, so that it scrolls as well with 50,000 rows as with 50.
 *
 * All rows are equally high. At its end it follows new rows; scrolling up stops that.
 */

import { html, render } from "../vendor/lit-html/lit-html.js";

const ROW_PX = 18;
const SPARE_ROWS = 20; // above and below what is visible

class WindowedList extends HTMLElement {
  /** @type {string[]} */ rows = [];
  /** @type {(row: string, index: number) => Renderable} */ template = (row) => row;
  following = true;
  resizing = new ResizeObserver(() => this.draw());

  connectedCallback() {
    this.tabIndex = 0; // to be scrolled with the keyboard
    this.onscroll = () => this.draw();
    this.resizing.observe(this);
  }

  disconnectedCallback() {
    this.resizing.disconnect();
  }

  /** Show `rows`, each drawn by `template(row, index)`. @param {string[]} rows @param {(row: string, index: number) => Renderable} template */
  show(rows, template) {
    const atEnd = this.scrollTop + this.clientHeight >= this.scrollHeight - 2 * ROW_PX;
    this.rows = rows;
    this.template = template;
    this.draw();
    if (this.following && atEnd) this.scrollToEnd();
  }

  /** Scroll so that a row stands in the middle. @param {number} index */
  scrollToRow(index) {
    this.scrollTop = index * ROW_PX - this.clientHeight / 2;
  }

  scrollToEnd() {
    this.scrollTop = this.scrollHeight;
  }

  draw() {
    const first = Math.max(0, Math.floor(this.scrollTop / ROW_PX) - SPARE_ROWS);
    const last = Math.ceil((this.scrollTop + this.clientHeight) / ROW_PX) + SPARE_ROWS;
    const shown = this.rows.slice(first, last);
    const before = Math.min(first, this.rows.length) * ROW_PX;
    const after = Math.max(0, this.rows.length - first - shown.length) * ROW_PX;
    render(
      html`<div .style=${`height:${before}px`}></div>
        ${shown.map((row, index) => html`<div class="line">${this.template(row, first + index)}</div>`)}
        <div .style=${`height:${after}px`}></div>`,
      this,
    );
  }
}

customElements.define("windowed-list", WindowedList);
