/** The base of elements that show the plan of a model, and plan it anew for each choice. */

import { explain } from "../server.js";
import { View } from "../view.js";

export class Planned extends View {
  model = ""; // its name, to be set before it is shown

  /** @type {Record<string, string | number>} */ choice = {}; // what is not left to the server
  /** @type {Plan | null} */ first = null; // the plan without a choice: it knows all that there is to choose from
  /** @type {Plan | null} */ plan = null;
  problem = "";

  leave() {
    this.asking?.abort();
  }

  /** Choose something, or with "" leave it to the server. @param {string} field @param {string | number} value */
  async choose(field, value) {
    const { [field]: _, ...others } = this.choice;
    this.choice = value === "" ? others : { ...others, [field]: value };
    await this.ask();
  }

  async ask() {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    this.update();
    try {
      const plan = await this.fetchPlan(asking.signal);
      this.first ??= plan;
      Object.assign(this, { plan, problem: "" });
    } catch (error) {
      if (asking.signal.aborted) return;
      this.problem = explain(error);
    }
    if (this.asking === asking) this.asking = null;
    this.update();
  }

  /** @param {AbortSignal} _signal @returns {Promise<Plan>} */
  fetchPlan(_signal) {
    throw new Error("to be written");
  }
}
