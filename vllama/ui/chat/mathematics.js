/**
 * Formulas, drawn by KaTeX, which is loaded with the first of them.
 *
 * No text of a model is parsed as HTML here: KaTeX makes elements.
 */

const FOLDER = new URL("../vendor/katex/", import.meta.url);
const OPTIONS = {
  throwOnError: false, // what cannot be read is shown as its source
  errorColor: "currentColor",
  trust: false, // no links, images, or attributes
  strict: "ignore",
  maxSize: 20,
  maxExpand: 500,
};

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
