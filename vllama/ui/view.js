/** The base of the page's elements: a template that is rendered again when something changes. */

import { changes } from "./live/state.js";
import { render } from "./vendor/lit-html/lit-html.js";

export class View extends HTMLElement {
  /** The topics of `changes` that the view shows. @type {string[]} */
  static topics = [];

  leaving = new AbortController(); // of the listeners, when the view is removed
  pending = false;
  /** @type {(() => void) | null} */ afterwards = null; // what is done after the next rendering

  connectedCallback() {
    this.leaving = new AbortController();
    for (const topic of /** @type {typeof View} */ (this.constructor).topics) this.listen(topic, () => this.update());
    this.enter();
    this.update();
  }

  disconnectedCallback() {
    this.leaving.abort();
    this.leave();
  }

  enter() {}

  leave() {}

  rendered() {}

  /** @returns {Renderable} */
  template() {
    return undefined;
  }

  /** Call `listener` for a topic while the view is shown. @param {string} topic @param {() => void} listener */
  listen(topic, listener) {
    changes.addEventListener(topic, listener, { signal: this.leaving.signal });
  }

  /** Call `listener` every so often while the view is shown and visible. @param {number} milliseconds @param {() => unknown} listener */
  every(milliseconds, listener) {
    const timer = setInterval(() => document.hidden || listener(), milliseconds);
    this.leaving.signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** Render before the next frame: several changes cost one rendering, a hidden page none. */
  update() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (!this.isConnected) return;
      render(this.template(), this, { host: this }); // listeners have it as their `this`
      this.rendered();
      this.afterwards?.();
      this.afterwards = null;
    });
  }
}
