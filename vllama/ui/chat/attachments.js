/** Files that go along with a message: pictures for models that see, and texts for all. */

const MOST_TEXT_BYTES = 512 * 1024; // some 150,000 tokens, more than most contexts hold

/**
 * Return `{ image }`, a data URL, or `{ text: { name, text } }` of a file.
 *
 * Throws an error with a reason for the user if it is neither a picture nor a text.
 */
export async function readFile(file) {
  return isPicture(file) ? { kind: "image", name: file.name, blob: file } : { kind: "text", ...(await readText(file)) };
}

/** Return a message with its texts after it, each as a code block under its name. */
export function joinTexts(message, texts = []) {
  const blocks = texts.map(({ name, text }) => {
    const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
    return `${name}:\n${fence}\n${text.trimEnd()}\n${fence}`;
  });
  return [message, ...blocks].filter(Boolean).join("\n\n");
}

// an SVG is a text that describes a picture, and models read it as such
const urls = new WeakMap();
export function pictureUrl(file) {
  if (!urls.has(file)) urls.set(file, URL.createObjectURL(file.blob));
  return urls.get(file);
}
const isPicture = ({ type }) => type.startsWith("image/") && !type.startsWith("image/svg");

async function readText(file) {
  const refuse = (reason) => new Error(`cannot attach “${file.name}”: ${reason}`);
  if (file.size > MOST_TEXT_BYTES) throw refuse("it has more than 512 KiB, too much for a message");
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw refuse("it is neither a picture nor a text in UTF-8; convert it into a text first");
  }
  if (text.includes("\0")) throw refuse("it is neither a picture nor a text; convert it into a text first");
  return { name: file.name, text };
}

function readAsUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`cannot attach “${file.name}”: the browser could not read it`));
    reader.readAsDataURL(file);
  });
}
