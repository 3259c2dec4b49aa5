/**
 * Markdown as HTML. What a model writes is not trusted: HTML in it is shown as text, images become
 * links (they would tell another server that the answer was read), and DOMPurify has the last word.
 */

import { Marked } from "../vendor/marked/marked.esm.js";

const FIRST_HEADING = 3; // h1 is the page, h2 the message
const HARMLESS = /^<\/?(b|br|em|i|kbd|mark|strong|sub|sup|u)\s*\/?>$/i;
const REST = 4; // spend at most a fifth of the time on rendering a growing text

const escape = (text) =>
  text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
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

function link(href, content) {
  return `<a href="${escape(href)}" target="_blank" rel="noopener noreferrer">${content}</a>`;
}

class MarkdownText extends HTMLElement {
  #wanted = "";
  #shown = null;
  #timer = 0;
  #cost = 0;

  /** The text; it may be set often while it grows. */
  set text(value) {
    this.#wanted = value;
    if (value !== this.#shown && !this.#timer) {
      this.#timer = setTimeout(() => this.#draw(), this.#cost * REST);
    }
  }

  #draw() {
    const started = performance.now();
    this.#timer = 0;
    this.#shown = this.#wanted;
    const content = globalThis.DOMPurify.sanitize(marked.parse(this.#shown), {
      RETURN_DOM_FRAGMENT: true,
      FORBID_ATTR: ["style", "id", "name"],
      ADD_ATTR: ["target"],
    });
    content.querySelectorAll("pre").forEach(addCopyButton);
    content.querySelectorAll("table").forEach(letScroll);
    this.replaceChildren(content);
    this.#cost = performance.now() - started;
  }
}

function addCopyButton(pre) {
  const text = pre.textContent;
  const button = document.createElement("button");
  button.className = "copy quiet";
  button.textContent = "Copy";
  button.onclick = async () => {
    await copyText(text);
    button.textContent = "Copied";
  };
  const box = document.createElement("div");
  box.className = "code";
  pre.tabIndex = 0; // it may have to be scrolled with the keyboard
  pre.replaceWith(box);
  box.append(button, pre);
}

function letScroll(table) {
  const box = document.createElement("div");
  box.className = "scroll";
  box.tabIndex = 0;
  table.className = "plain";
  table.replaceWith(box);
  box.append(table);
}

/** Copy text, also where the page has no `navigator.clipboard` because it came over plain http. */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

customElements.define("markdown-text", MarkdownText);
