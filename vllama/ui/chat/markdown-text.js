/**
 * Markdown as HTML. What a model writes is not trusted: HTML in it is shown as text, images become
 * links (they would tell another server that the answer was read), and DOMPurify has the last word.
 */

import "../vendor/dompurify/purify.min.js"; // sets globalThis.DOMPurify
import { Marked } from "../vendor/marked/marked.esm.js";
import { addBar, colorBlocks } from "./code-block.js";
import { drawMathematics, escape, mathematics } from "./mathematics.js";

const FIRST_HEADING = 3; // h1 is the page, h2 the message
const HARMLESS = /^<\/?(b|br|em|i|kbd|mark|strong|sub|sup|u)\s*\/?>$/i;
const REST = 4; // spend at most a fifth of the time on rendering a growing text

const marked = new Marked(mathematics, {
  gfm: true,
  breaks: true,
  // one tilde is for H~2~O, or for "about"; false leaves the rest to marked
  tokenizer: { del: (source) => (source.startsWith("~~") ? false : undefined) },
  renderer: {
    html: ({ text }) => (HARMLESS.test(text.trim()) ? text : escape(text)),
    image: ({ href, text }) => link(href, `image: ${escape(text || href)}`),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    link({ href, tokens }) {
      return link(href, this.parser.parseInline(tokens));
    },
    heading({ depth, tokens }) {
      const level = Math.min(6, depth + FIRST_HEADING - 1);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

/** @param {string} href @param {string} content */
function link(href, content) {
  return `<a href="${escape(href)}" target="_blank" rel="noopener noreferrer">${content}</a>`;
}

/** Return the elements of a block of Markdown, which hold nothing that could run. @param {import("marked").Token} token */
function make(token) {
  const block = document.createElement("div");
  block.dir = "auto";
  block.append(
    globalThis.DOMPurify.sanitize(marked.parser([token]), {
      RETURN_DOM_FRAGMENT: true,
      FORBID_ATTR: ["style", "id", "name"],
      ADD_ATTR: ["target"],
    }),
  );
  block.querySelectorAll("pre").forEach(addBar);
  block.querySelectorAll("table").forEach(letScroll);
  drawMathematics(block);
  return block;
}

/**
 * A text that may grow. Its blocks are elements that stay as they are until their source changes, so
 * that a long answer costs little, and what is selected in it stays selected.
 */
class MarkdownText extends HTMLElement {
  #wanted = "";
  #growing = false;
  /** @type {string | null} */ #shown = null;
  /** @type {{ raw: string, node: HTMLElement, complete: boolean }[]} */ #blocks = [];
  #links = "";
  #timer = 0;
  #cost = 0;

  /** The text; it may be set often while it grows. @param {string} value */
  set text(value) {
    this.#wanted = value;
    if (value !== this.#shown) this.#plan();
  }

  /** Whether more may come: then the last block is not yet colored. @param {boolean} value */
  set growing(value) {
    this.#growing = value;
    this.#plan();
  }

  #plan() {
    this.#timer ||= setTimeout(() => this.#draw(), this.#cost * REST);
  }

  #draw() {
    const started = performance.now();
    this.#timer = 0;
    if (this.#shown !== this.#wanted) this.#replace(marked.lexer(this.#wanted));
    this.#shown = this.#wanted;
    for (const block of this.#growing ? this.#blocks.slice(0, -1) : this.#blocks) {
      if (!block.complete) colorBlocks(block.node);
      block.complete = true;
    }
    this.#cost = performance.now() - started;
  }

  /** @param {import("marked").TokensList} tokens */
  #replace(tokens) {
    const links = JSON.stringify(tokens.links); // a definition below changes the text above
    const known = links === this.#links ? this.#blocks : [];
    const kept = tokens.findIndex(({ raw }, index) => raw !== known[index]?.raw);
    const blocks = known.slice(0, kept < 0 ? tokens.length : kept);
    for (const { node } of this.#blocks.slice(blocks.length)) node.remove();
    for (const token of tokens.slice(blocks.length)) blocks.push({ raw: token.raw, node: make(token), complete: false });
    this.append(...blocks.map(({ node }) => node).filter((node) => !node.isConnected));
    this.#blocks = blocks;
    this.#links = links;
  }
}

/** @param {HTMLTableElement} table */
function letScroll(table) {
  const box = document.createElement("div");
  box.className = "scroll";
  box.tabIndex = 0;
  table.className = "plain";
  table.replaceWith(box);
  box.append(table);
}

customElements.define("markdown-text", MarkdownText);
