/** Blocks of code: their language, "Copy", and colors, for which highlight.js is loaded when one comes into view. */

import { copyFrom } from "../parts/copy.js";
import { html, render } from "../vendor/lit-html/lit-html.js";

const MOST_CHARACTERS = 100_000; // more takes longer than one notices
const NEAR_PX = 600;
/** Languages beside highlight.js's common ones, with other names that they go by. @type {Record<string, string[]>} */
const FURTHER = {
  clojure: ["clj", "edn"],
  cmake: [],
  dart: [],
  dockerfile: ["docker", "containerfile"],
  elixir: ["ex", "exs"],
  erlang: ["erl"],
  fortran: ["f90", "f95"],
  fsharp: ["fs", "f#"],
  groovy: ["gradle"],
  haskell: ["hs"],
  http: ["https"],
  julia: ["jl"],
  latex: ["tex"],
  lisp: ["elisp", "common-lisp"],
  matlab: ["octave"],
  nginx: ["nginxconf"],
  nix: ["nixos"],
  ocaml: ["ml"],
  powershell: ["pwsh", "ps", "ps1"],
  protobuf: ["proto"],
  scala: [],
  verilog: ["v", "sv", "systemverilog"],
  vim: ["viml", "vimscript"],
  x86asm: ["asm", "nasm"],
};

const nearing = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      nearing.unobserve(target);
      color(target).catch(() => {}); // without the library it stays as it is
    }
  },
  { rootMargin: `${NEAR_PX}px` },
);

/** Give a `pre` of Markdown its bar. @param {HTMLPreElement} pre */
export function addBar(pre) {
  const text = pre.textContent;
  const box = document.createElement("div");
  box.className = "code";
  box.dir = "ltr";
  const bar = html`<div class="bar">
    <span>${findLanguage(pre.firstElementChild) || "text"}</span>
    <button type="button" class="quiet" aria-label="Copy the code" @click=${(event) => copyFrom(event.currentTarget, text)}>Copy</button>
  </div>`;
  render(bar, box);
  pre.tabIndex = 0; // it may have to be scrolled with the keyboard
  pre.replaceWith(box);
  box.append(pre);
}

/** Color the blocks within `root` that are complete, each when it comes near the view. @param {HTMLElement} root */
export function colorBlocks(root) {
  for (const code of root.querySelectorAll(".code > pre > code")) {
    if (findLanguage(code) && code.textContent.length < MOST_CHARACTERS) nearing.observe(code);
  }
}

/** @param {Element | null} code */
const findLanguage = (code) => /(?:^|\s)language-(\S+)/.exec(code?.className ?? "")?.[1].toLowerCase() ?? "";

/** @param {Element} code */
async function color(code) {
  const { default: highlighter } = await import("../vendor/highlight/highlight.min.js");
  const language = await learn(highlighter, findLanguage(code));
  const text = code.textContent;
  if (!language || !code.isConnected) return; // to guess one takes longer, and is often wrong
  const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
  const made = globalThis.DOMPurify.sanitize(value, {
    ALLOWED_TAGS: ["span"],
    ALLOWED_ATTR: ["class"],
    RETURN_DOM_FRAGMENT: true,
  });
  if (made.textContent === text) code.replaceChildren(made);
}

/** Return the highlighter's name for a language, after loading it if need be; empty if it has none. @param {Highlighter} highlighter @param {string} name */
async function learn(highlighter, name) {
  if (highlighter.getLanguage(name)) return name;
  const further = Object.keys(FURTHER).find((one) => one === name || FURTHER[one].includes(name));
  if (!further) return "";
  const { default: grammar } = await import(`../vendor/highlight/languages/${further}.min.js`);
  highlighter.registerLanguage(further, grammar);
  return further;
}
