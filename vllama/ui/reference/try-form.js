/** The form below an operation that sends a request, and shows the answer as it arrives. */

import { duration } from "../format.js";
import { copyFrom } from "../parts/copy.js";
import { explain } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";
import { makeCommand, makeUrl, sendRequest } from "./request.js";

class TryForm extends View {
  /** @type {Operation} */ operation;
  /** @type {LocalModel[]} */ models = [];
  /** @type {Record<string, string>} */ values = {};
  /** @type {Example[]} */ examples = [];
  /** @type {AbortController | null} */ stopping = null;
  body = "";
  outcome = "";
  answer = "";

  /** `operation` and `models`, the models of the server, are set before it is shown. */
  enter() {
    const { parameters = [], requestBody } = this.operation;
    this.values = Object.fromEntries(parameters.map(({ name, example }) => [name, example ?? ""]));
    this.examples = Object.values(requestBody?.content["application/json"]?.examples ?? {});
    this.body = "";
    if (this.examples.length) this.choose(0);
    else if (requestBody?.content["application/json"]) this.body = "{}";
  }

  leave() {
    this.stopping?.abort();
  }

  template() {
    const { parameters = [], operationId } = this.operation;
    return html`<form class="try" @submit=${this.submit}>
      <h3>Try it</h3>
      ${parameters.map(
        ({ name, description }) => html`<label>
          <span>${name}: ${description}</span>
          <input
            .value=${this.values[name]}
            required
            @input=${(event) => this.change({ values: { ...this.values, [name]: event.target.value } })}
          >
        </label>`,
      )}
      ${this.examples.length > 1
        ? html`<label>
            <span>Example</span>
            <select @change=${(event) => this.choose(Number(event.target.value))}>
              ${this.examples.map(({ summary }, n) => html`<option value=${n}>${summary}</option>`)}
            </select>
          </label>`
        : nothing}
      ${this.body
        ? html`<label>
            <span>Body</span>
            <textarea
              rows=${Math.min(16, this.body.split("\n").length + 1)}
              spellcheck="false"
              .value=${this.body}
              @input=${(event) => this.change({ body: event.target.value })}
            ></textarea>
          </label>`
        : nothing}
      <p class="row">
        ${this.stopping
          ? html`<button type="button" @click=${() => this.stopping?.abort()}>Stop</button>`
          : html`<button class="primary">Send</button>`}
        <button type="button" @click=${(event) => copyFrom(event.currentTarget, this.command())} aria-live="polite">Copy as curl</button>
      </p>
      <pre class="command"><code>${this.command()}</code></pre>
      <div aria-live="polite">${this.outcome ? html`<p>${this.outcome}</p>` : nothing}</div>
      ${this.answer
        ? html`<pre
            class="answer"
            tabindex="0"
            role="region"
            aria-label="Response of ${operationId}"
          >${this.answer}</pre>`
        : nothing}
    </form>`;
  }

  /** Take an example; a model that is not here is replaced by one that is. @param {number} number */
  choose(number) {
    const value = structuredClone(this.examples[number].value);
    if (value.model && !this.operation.path.match(/pull|create/)) {
      const wanted = this.operation.path.includes("embed") ? "embedding" : "completion";
      const names = this.models.map(({ name }) => name);
      const able = this.models.find(({ capabilities = [] }) => capabilities.includes(wanted));
      if (!names.includes(value.model) && able) value.model = able.name;
    }
    this.change({ body: JSON.stringify(value, null, 2) });
  }

  command() {
    const body = this.body && this.body.replace(/\s*\n\s*/g, " ");
    return makeCommand(this.operation, makeUrl(this.operation, this.values), body);
  }

  /** @param {FormEvent} event */
  async submit(event) {
    event.preventDefault(); // the policy of the page forbids to send forms
    const stopping = (this.stopping = new AbortController());
    this.change({ outcome: "Waiting for the response.", answer: "" });
    try {
      const url = makeUrl(this.operation, this.values);
      const answer = await sendRequest(this.operation, url, this.body, stopping.signal, (answer) => this.change({ answer }));
      this.outcome = `Status ${answer.status}, ${answer.type || "no content"}, ${duration(answer.seconds)}`;
      this.answer = answer.text;
    } catch (error) {
      this.outcome = explain(error);
    }
    this.change({ stopping: null });
  }
}

customElements.define("try-form", TryForm);
