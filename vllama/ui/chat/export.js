/** Conversations as files: JSON, which can be imported again, and the branch that is shown as Markdown. */

import { download } from "../parts/download.js";
import { encodePicture, joinTexts } from "./attachments.js";
import { takeOver } from "./following.js";
import { keep } from "./saving.js";
import { makeConversation, session } from "./shown.js";
import { readConversation, readFiles } from "./store.js";
import { listPath, makeTree } from "./tree.js";

const FORMAT = 2; // 1 was before 0.2.0
/** The least that a conversation has: "" stands for a text, 0 for a number. */
const FORM = {
  id: "", title: "", updated: 0, models: [""], off: [""],
  turns: [{ id: "", after: [""], at: 0, text: "", files: [""] }],
  answers: [{ id: "", turn: "", pane: 0, model: "", at: 0, saved: 0, state: "", messages: [{ role: "", content: "" }] }],
  files: [{ id: "", kind: "", name: "" }],
};

export const exportAll = () => save(session.list.map(({ id }) => id), "conversations");

/** @param {string} id */
export const exportOne = (id) => save([id], findTitle(id));

/** Save the branch of a conversation that is shown. @param {string} id */
export async function exportMarkdown(id) {
  const found = /** @type {Stored} */ (await readConversation(id));
  const path = listPath(makeTree(found), found.conversation.head);
  const files = new Map((await readFiles(path.flatMap(({ turn }) => turn.files))).map((file) => [file.id, file]));
  const parts = path.flatMap(({ turn, answers }) => {
    const attached = turn.files.map((one) => files.get(one)).filter((file) => file !== undefined);
    const pictures = attached.filter(({ kind }) => kind === "image").map(({ name }) => `(image: ${name || "without a name"})`);
    const said = joinTexts(turn.text, attached.filter((file) => file.kind === "text"));
    return [
      `## You\n\n${[said, ...pictures].filter(Boolean).join("\n\n")}`,
      ...answers.map(({ model, messages }) => `## ${model}\n\n${messages.map(writeMessage).filter(Boolean).join("\n\n")}`),
    ];
  });
  download(`# ${found.conversation.title}\n\n${parts.join("\n\n")}\n`, "text/markdown", `${findTitle(id)}.md`);
}

/**
 * Add the conversations of a file to those that are here: all of it, or nothing. Return how many were
 * not here, and to how many something was added.
 * @param {File} file
 */
export async function importFile(file) {
  /** @param {string} reason */
  const refuse = (reason) => new Error(`cannot import “${file.name}”: ${reason}`);
  const read = await file.text().then(JSON.parse).catch(() => null);
  if (read?.format > FORMAT) throw refuse("it was exported by a newer vllama");
  if (read?.format !== FORMAT || !Array.isArray(read.conversations)) throw refuse("it is not a conversation export");
  const conversations = read.conversations.map((/** @type {any} */ one, /** @type {number} */ index) => {
    try {
      if (hasForm(one && { off: [], ...one }, FORM) && isToolList(one.tools)) return decode(one);
    } catch {
      // a picture that is none
    }
    throw refuse(`conversation ${index + 1} of ${read.conversations.length} is damaged`);
  });
  const done = { added: 0, updated: 0 };
  for (const one of conversations) {
    const id = one.conversation.id;
    const here = await readConversation(id);
    const records = here ? findNewer(one, here) : { ...one, patch: one.conversation };
    if (!records) continue;
    await keep(id, records);
    await takeOver({ conversation: id, turns: listIds(records.turns), answers: listIds(records.answers) });
    done[here ? "updated" : "added"] += 1;
  }
  return done;
}

/** Return the records of an imported conversation that are newer than those here; null if none is. @param {Imported} read @param {Stored} here */
function findNewer(read, here) {
  const known = makeTree(here);
  const turns = read.turns.filter(({ id }) => !known.turns.has(id));
  const answers = read.answers.filter(({ id, saved }) => saved > (known.answers.get(id)?.saved ?? -1));
  const isNewer = Number(read.conversation.updated) > Number(here.conversation.updated);
  if (!turns.length && !answers.length && !isNewer) return null;
  return { patch: isNewer ? read.conversation : {}, turns, answers, files: read.files };
}

/** @param {{ id: string }[]} records */
const listIds = (records) => records.map(({ id }) => id);

/** Tell whether a value has the form of another: the same types, lists of such parts, at least its fields. @param {any} value @param {any} form @returns {boolean} */
function hasForm(value, form) {
  if (Array.isArray(form)) return Array.isArray(value) && value.every((part) => hasForm(part, form[0]));
  if (typeof form !== "object") return typeof value === typeof form;
  return value !== null && typeof value === "object" && Object.entries(form).every(([name, part]) => hasForm(value[name], part));
}

/** Tell whether these are tools as a conversation has them: a list in JSON, or none. @param {unknown} text */
const isToolList = (text = "") => typeof text === "string" && (!text || Array.isArray(JSON.parse(text)));

/** Return a message with its tool calls, and the result of one as such. @param {Message} message */
function writeMessage({ role, content, tool_calls: calls = [], tool_name: name }) {
  if (role === "tool") return joinTexts("", [{ name: `Result of ${name}`, text: content }]);
  return joinTexts(content, calls.map(({ function: { name, arguments: given } }) => ({ name: `Calls ${name}`, text: JSON.stringify(given, null, 2) })));
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

/** @param {Exported} exported @returns {Imported} */
function decode({ turns, answers, files, ...fields }) {
  const whole = files.map(({ data, ...file }) => (data ? { ...file, blob: makeBlob(data) } : file));
  /** @template {object} Item @param {Item[]} records */
  const own = (records) => records.map((record) => ({ ...record, conversation: fields.id }));
  const conversation = { ...makeConversation(), created: fields.updated, ...fields };
  return { conversation, turns: own(turns), answers: own(answers), files: own(whole) };
}

/** Return the content of a data URL; the page's policy forbids to fetch one. @param {string} url */
function makeBlob(url) {
  const [head, data] = url.split(",");
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  return new Blob([bytes], { type: /^data:([^;,]*)/.exec(head)?.[1] ?? "" });
}

/** @param {string} id */
const findTitle = (id) => session.list.find((row) => row.id === id)?.title ?? "conversation";
