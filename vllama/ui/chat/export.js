/** Conversations as files: JSON, which can be imported again, and the branch that is shown as Markdown. */

import { encodePicture } from "./attachments.js";
import { keep } from "./saving.js";
import { replaceRow, announce, session } from "./shown.js";
import { listConversations, newId, readConversation, readFiles } from "./store.js";
import { convert, makeBlob } from "./takeover.js";
import { listPath, makeTree } from "./tree.js";

const FORMAT = 2; // 1 had no branches, and its pictures as data URLs

export const exportAll = () => save(session.list.map(({ id }) => id), "conversations");

/** @param {string} id */
export const exportOne = (id) => save([id], findTitle(id));

/** Save the branch of a conversation that is shown. @param {string} id */
export async function exportMarkdown(id) {
  const found = /** @type {Stored} */ (await readConversation(id));
  const path = listPath(makeTree(found), found.conversation.head);
  const parts = path.flatMap(({ turn, answers }) => [
    `## You\n\n${turn.text}`,
    ...answers.map(({ model, messages }) => `## ${model}\n\n${messages.map(({ content }) => content).filter(Boolean).join("\n\n")}`),
  ]);
  download(`# ${found.conversation.title}\n\n${parts.join("\n\n")}\n`, "text/markdown", `${findTitle(id)}.md`);
}

/** Add the conversations of a file to those that are here; return how many were not here. @param {File} file */
export async function importFile(file) {
  const read = await file.text().then(JSON.parse).catch(() => null);
  if (!Array.isArray(read?.conversations)) throw new Error(`cannot import “${file.name}”: it is no export of conversations`);
  const known = new Set((await listConversations()).map(({ id }) => id));
  /** @type {Exported[]} */
  const added = read.conversations.filter((/** @type {Place} */ { id }) => !known.has(id));
  for (const one of added) {
    const { conversation, ...parts } = read.format === FORMAT ? decode(one) : convert(/** @type {any} */ (one), newId);
    await keep(conversation.id, { patch: conversation, ...parts });
    replaceRow(conversation);
  }
  announce();
  return added.length;
}

/** @param {string[]} ids @param {string} name */
async function save(ids, name) {
  const conversations = [];
  for (const id of ids) {
    const { conversation, turns, answers } = /** @type {Stored} */ (await readConversation(id));
    const files = await readFiles(turns.flatMap((turn) => turn.files));
    conversations.push({ ...conversation, turns, answers, files: await Promise.all(files.map(encode)) });
  }
  download(JSON.stringify({ format: FORMAT, conversations }, null, 2), "application/json", `${name}.json`);
}

/** @param {StoredFile} stored */
async function encode(stored) {
  if (stored.kind === "text") return stored;
  const { blob, ...file } = stored;
  return { ...file, data: `data:${blob.type};base64,${await encodePicture({ blob })}` };
}

/** @param {Exported} exported */
function decode({ turns, answers, files, ...conversation }) {
  const whole = files.map(({ data, ...file }) => (data ? { ...file, blob: makeBlob(data) } : file));
  return { conversation, turns, answers, files: whole };
}

/** @param {string} id */
const findTitle = (id) => session.list.find((row) => row.id === id)?.title ?? "conversation";

/** @param {string} text @param {string} type @param {string} name */
function download(text, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name.replace(/[^\w.-]+/g, "-").slice(-60);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
