/**
 * Mathematics in Markdown, as an extension of marked: `$…$` and `\(…\)` in a line, `$$…$$` and `\[…\]` set off.
 *
 * The TeX goes on as the text of an element, which `mathematics.js` draws after the HTML was made safe.
 */

const BLOCK = /^ {0,3}(?:\$\$((?:(?!\n[ \t]*\n)[^$])+)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;
const BLOCK_START = /\n {0,3}(?:\$\$|\\\[)/;
const SET_OFF = /^(?:\$\$([^$\n]+)\$\$|\\\[((?:(?!\n[ \t]*\n)[\s\S])+?)\\\])/;
const BRACKETS = /^\\\(((?:(?!\n[ \t]*\n)[\s\S])+?)\\\)/;
// Not money: no space inside the dollars, no word on the outside. Code spans are none of our affair.
const DOLLARS = /^\$(?!\s)((?:\\[^\n]|[^$\\\n`])+?)(?<!\s)\$(?!\w)/;
const INLINE_START = /\$|\\[([]/;

/** @param {string} text */
const escape = (text) => text.replace(/[&<>]/g, (one) => `&#${one.charCodeAt(0)};`);

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
