/** Files that go along with a message: pictures for models that see, and texts for all. */

import { plural } from "../format.js";
import { reach } from "../server.js";

const MOST_TEXT_BYTES = 512 * 1024; // some 150,000 tokens, more than most contexts hold

/** @type {WeakMap<object, string>} */
const urls = new WeakMap(); // file → address

/** Return a file as a picture or a text, as a PDF becomes one. Throws an error with a reason for the user if it is neither. @param {File} file @returns {Promise<Attachment>} */
export async function readFile(file) {
  if (isPicture(file)) return { kind: "image", name: file.name, blob: file };
  try {
    if (!isPdf(file)) return { kind: "text", name: file.name, text: await readText(file) };
    const { readPdf } = await reach(import("./pdf.js"));
    const { text, pages } = await readPdf(file, MOST_TEXT_BYTES);
    return { kind: "text", name: `${file.name} (${plural(pages, "page")})`, text };
  } catch (error) {
    throw new Error(`cannot attach “${file.name}”: ${/** @type {Error} */ (error).message}`);
  }
}

/** Return an address by which a picture can be shown. @param {{ blob: Blob }} file */
export function pictureUrl(file) {
  if (!urls.has(file)) urls.set(file, URL.createObjectURL(file.blob));
  return urls.get(file);
}

/** Return a picture as base64. @param {{ blob: Blob }} file */
export async function encodePicture({ blob }) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  const parts = [];
  for (let start = 0; start < bytes.length; start += 0x8000) {
    parts.push(String.fromCharCode(...bytes.subarray(start, start + 0x8000)));
  }
  return btoa(parts.join(""));
}

/** Return a message with its texts after it, each as a code block under its name. @param {string} message @param {{ name: string, text: string }[]} texts */
export function joinTexts(message, texts = []) {
  const blocks = texts.map(({ name, text }) => {
    const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
    return `${name}:\n${fence}\n${text.trimEnd()}\n${fence}`;
  });
  return [message, ...blocks].filter(Boolean).join("\n\n");
}

// an SVG is a text that describes a picture, and models read it as such
/** @param {File} file */
const isPicture = ({ type }) => type.startsWith("image/") && !type.startsWith("image/svg");

/** @param {File} file */
const isPdf = ({ name, type }) => type === "application/pdf" || /\.pdf$/i.test(name);

/** @param {File} file */
async function readText(file) {
  if (file.size > MOST_TEXT_BYTES) throw new Error("it is larger than 512 KiB");
  const data = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    if (!text.includes("\0")) return text;
  } catch {
    // no UTF-8
  }
  throw new Error("it is neither an image, a PDF nor UTF-8 text; convert it to text first");
}
