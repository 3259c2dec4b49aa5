/** The base of the page's elements: a template that is rendered again when something changes. */

import { changes } from "./live/state.js";
import { render } from "./vendor/lit-html/lit-html.js";

export class View extends HTMLElement {
  /** The topics of `changes` that the view shows. */
  static topics = [];

  connectedCallback() {
    this.leaving = new AbortController();
    for (const topic of this.constructor.topics) this.listen(topic, () => this.update());
    this.enter?.();
    this.update();
  }

  disconnectedCallback() {
    this.leaving.abort();
    this.leave?.();
  }

  /** Call `listener` for a topic while the view is shown. */
  listen(topic, listener) {
    changes.addEventListener(topic, listener, { signal: this.leaving.signal });
  }

  /** Call `listener` every so often while the view is shown and visible. */
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
      this.rendered?.();
    });
  }
}
