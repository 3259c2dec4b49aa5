/**
 * Mathematics in Markdown, as an extension of marked: `$…$` and `\(…\)` in a line, `$$…$$` and `\[…\]` set off.
 *
 * The TeX goes on as the text of an element. After the HTML was made safe, KaTeX, which is loaded with
 * the first formula, draws it: it makes elements, so no text of a model is parsed as HTML here.
 */

const BLOCK = /^ {0,3}(?:\$\$((?:(?!\n[ \t]*\n)[^$])+)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;
const BLOCK_START = /\n {0,3}(?:\$\$|\\\[)/;
const SET_OFF = /^(?:\$\$([^$\n]+)\$\$|\\\[((?:(?!\n[ \t]*\n)[\s\S])+?)\\\])/;
const BRACKETS = /^\\\(((?:(?!\n[ \t]*\n)[\s\S])+?)\\\)/;
// Not money: no space inside the dollars, no word on the outside. Code spans are none of our affair.
const DOLLARS = /^\$(?!\s)((?:\\[^\n]|[^$\\\n`])+?)(?<!\s)\$(?!\w)/;
const INLINE_START = /\$|\\[([]/;
const FOLDER = new URL("../vendor/katex/", import.meta.url);
const OPTIONS = {
  throwOnError: false, // what cannot be read is shown as its source
  errorColor: "currentColor",
  trust: false, // no links, images, or attributes
  strict: "ignore",
  maxSize: 20,
  maxExpand: 500,
};

/** @param {string} text */
export const escape = (text) => text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);

/** @param {any} token */
function renderer({ tex, display }) {
  return `<code class="math" data-display="${display}">${escape(tex)}</code>`;
}

/** @type {import("marked").MarkedExtension} */
export const mathematics = {
  extensions: [
    {
      name: "math-block",
      level: "block",
      start: (text) => (text.match(BLOCK_START)?.index ?? -2) + 1,
      tokenizer(text) {
        const found = BLOCK.exec(text);
        if (!found) return undefined;
        return { type: "math-block", raw: found[0], tex: (found[1] ?? found[2]).trim(), display: true };
      },
      renderer: (token) => `<p>${renderer(token)}</p>`,
    },
    {
      name: "math",
      level: "inline",
      start: (text) => text.search(INLINE_START),
      tokenizer(text, before) {
        const setOff = SET_OFF.exec(text);
        const found = setOff ?? BRACKETS.exec(text) ?? (isWord(before.at(-1)) ? null : DOLLARS.exec(text));
        if (!found) return undefined;
        return { type: "math", raw: found[0], tex: found[1] ?? found[2], display: Boolean(setOff) };
      },
      renderer,
    },
  ],
};

/** @param {import("marked").Token | undefined} token */
const isWord = (token) => /[\w$]$/.test(token?.raw ?? "");

/** @type {Promise<void> | null} */
let loading = null;

/** Draw the formulas within `root`: at once, or when KaTeX is there. @param {HTMLElement} root */
export async function drawMathematics(root) {
  const found = [.../** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("code.math"))];
  if (!found.length) return;
  if (!globalThis.katex) {
    try {
      await (loading ??= load());
    } catch {
      loading = null; // they stay as their source; the next text tries again
      return;
    }
    await new Promise((resolve) => setTimeout(resolve)); // hundreds of texts may have waited
  }
  found.forEach(draw);
}

async function load() {
  const sheet = document.createElement("link");
  sheet.rel = "stylesheet";
  sheet.href = new URL("katex.min.css", FOLDER).href;
  document.head.append(sheet);
  await import("../vendor/katex/katex.min.js"); // sets globalThis.katex
}

/** @param {HTMLElement} source */
function draw(source) {
  const displayMode = source.dataset.display === "true";
  const katex = /** @type {NonNullable<typeof globalThis.katex>} */ (globalThis.katex);
  const tree = katex.__renderToDomTree(source.textContent, { ...OPTIONS, displayMode });
  moveStyles(tree);
  const formula = tree.toNode();
  if (displayMode) formula.tabIndex = 0; // it may have to be scrolled with the keyboard
  source.replaceWith(formula);
}

/** Make properties of the styles that KaTeX would set as attributes: the policy of the page forbids those. @param {FormulaNode} node */
function moveStyles(node) {
  const style = node.attributes?.style;
  if (typeof style === "string") {
    delete node.attributes?.style;
    const make = node.toNode.bind(node);
    node.toNode = () => {
      const made = make();
      made.style.cssText += style;
      return made;
    };
  }
  node.children?.forEach(moveStyles);
}
