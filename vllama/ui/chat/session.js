/** What the user does with conversations: say, edit, regenerate, rename, delete and so on. */

import { changes } from "../live/state.js";
import { attempt } from "../parts/notices.js";
import { makeMessage, makeRequest, makeStream } from "./answer.js";
import { look } from "./following.js";
import { discard, keep, restoreLeft } from "./saving.js";
import { announce, forget, makeConversation, refresh, rememberModel, replaceRow, running, session, show } from "./shown.js";
import * as store from "./store.js";
import { tell } from "./tabs.js";
import { findTools, useTools } from "./tools.js";
import { descend, endAt, listBelow, listHistory, makeTree } from "./tree.js";
import { write } from "./writing.js";

export { isWriting, session } from "./shown.js";

const TITLE_LENGTH = 60; // characters, of which some take two places in a string

/** @type {Promise<void> | null} */
let loading = null;
let opened = 0;

/** Show a new conversation. @param {string} [model] */
export function beginConversation(model) {
  opened += 1;
  loading ??= loadList();
  show(makeConversation(model));
}

/** Show a conversation, up to the newest branch with the turn `at`. @param {string} id @param {string} [at] */
export async function openConversation(id, at) {
  const turn = ++opened;
  loading ??= loadList();
  if (id !== session.conversation.id) {
    await loading;
    const found = await store.readConversation(id);
    if (turn !== opened) return;
    if (!found) {
      show(makeConversation());
      throw new Error("cannot open the conversation: it is not stored in this browser");
    }
    const answers = found.answers.map((answer) => running.get(answer.id)?.answer ?? answer);
    const files = await store.readFiles(found.turns.flatMap((one) => one.files));
    if (turn !== opened) return;
    show(found.conversation, makeTree({ ...found, answers }), files);
  }
  if (at && session.tree.turns.has(at)) await showTurn(at);
  look();
}

/** Send a message to the models of the conversation; `files` as `readFile` returns them. @param {{ text: string, files: Attachment[] }} message */
export async function say({ text, files }) {
  const { conversation } = session;
  const patch = {};
  if (!conversation.id) {
    const title = [...text.trim().split("\n")[0].slice(0, 2 * TITLE_LENGTH)].slice(0, TITLE_LENGTH).join("") || files[0]?.name || "Image";
    Object.assign(patch, conversation, { id: store.newId(), title, created: Date.now() });
    navigator.storage?.persist?.();
  }
  await addTurn({ text, files, after: conversation.head?.answers ?? [] }, patch);
}

/** Say something else in the place of a turn, which stays as an earlier version. `files`: their ids. @param {string} id @param {{ text: string, files: string[] }} message */
export const edit = (id, { text, files }) => addTurn({ text, files, after: /** @type {Turn} */ (session.tree.turns.get(id)).after });

/** Have an answer written again, by a model of the conversation or another; the one before stays as an earlier version. @param {string} id @param {string} [other] */
export async function regenerate(id, other) {
  const { turn, pane, model } = /** @type {AnswerRecord} */ (session.tree.answers.get(id));
  const answer = makeAnswer(turn, pane, other ?? session.conversation.models[pane] ?? model);
  await Promise.all([addVersion(answer), request(answer)]);
}

/** Put a text of the user's into the place of an answer, which stays as an earlier version. @param {string} id @param {string} text */
export function editAnswer(id, text) {
  const { turn, pane, model, messages } = /** @type {AnswerRecord} */ (session.tree.answers.get(id));
  const { stream: _, ...answer } = makeAnswer(turn, pane, model);
  return addVersion({ ...answer, state: "done", saved: Date.now(), messages: [...messages.slice(0, -1), { ...makeMessage(), content: text }] });
}

/** Store another answer of its turn, and show it. @param {AnswerRecord} answer */
function addVersion(answer) {
  session.tree.answers.set(answer.id, answer);
  return changeRecord({ head: headWith(answer), updated: Date.now() }, { answers: [answer] });
}

/** Return the head that has an answer in the place of the one that is shown. @param {AnswerRecord} answer @returns {Head} */
function headWith({ id, turn, pane }) {
  const { answers } = /** @type {Step} */ (session.path.find((step) => step.turn.id === turn));
  return { turn, answers: answers.map((one) => (one.pane === pane ? id : one.id)) };
}

/** Have a model go on with an answer that was broken off. @param {string} id */
export const continueAnswer = (id) => goOn(id, []);

/** Give the results of a model's tool calls, and let it go on. `results`: name and content. @param {string} id @param {{ name: string, content: string }[]} results */
export const answerTools = (id, results) =>
  goOn(id, [...results.map(({ name, content }) => ({ role: "tool", tool_name: name, content })), makeMessage()]);

/** Have the tools of MCP servers called that an answer has asked for, and let the model go on. @param {string} id */
export async function callTools(id) {
  const answer = { .../** @type {AnswerRecord} */ (session.tree.answers.get(id)) };
  Object.assign(answer, { state: "writing", messages: [...answer.messages] });
  session.tree.answers.set(id, answer);
  await request(answer);
}

/** Stop an answer, also one of another tab. @param {string} id */
export function stop(id) {
  if (running.has(id)) running.get(id)?.abort.abort();
  else tell({ kind: "stop", id });
}

/** Show the newest branch with a turn, or with an answer. @param {string} id */
export const showTurn = (id) => changeRecord({ head: descend(session.tree, endAt(session.tree, id)) });

/** @param {string} id */
export const showAnswer = (id) =>
  changeRecord({ head: descend(session.tree, headWith(/** @type {AnswerRecord} */ (session.tree.answers.get(id)))) });

/** Change fields of the conversation: models, system, think, tools, options. @param {Partial<Conversation>} fields */
export function change(fields) {
  if (fields.models) rememberModel(fields.models[0]);
  return changeRecord(fields);
}

/** Give a conversation a title of the user's. @param {string} id @param {string} title */
export async function rename(id, title) {
  const fields = { title, titled: true };
  if (id === session.conversation.id) return changeRecord(fields);
  replaceRow({ .../** @type {Conversation} */ (session.list.find((row) => row.id === id)), ...fields });
  announce();
  return keep(id, { patch: fields });
}

/** Delete conversations for good. @param {string[]} ids */
export async function remove(ids) {
  await discard(ids);
  forget(ids);
}

/** Delete a message for good, with all that follows it; the only one takes the conversation along. @param {string} id */
export async function removeTurn(id) {
  const { conversation, tree, path } = session;
  const gone = new Set(listBelow(tree, id));
  if (gone.size === tree.turns.size) return remove([conversation.id]);
  const { turn, siblings } = /** @type {Step} */ (path.find((step) => step.turn.id === id));
  const { true: answers = [], false: left } = Object.groupBy(tree.answers.values(), (one) => String(gone.has(one.turn)));
  const rest = makeTree({ turns: [...tree.turns.values()].filter((one) => !gone.has(one.id)), answers: left });
  const used = new Set([...rest.turns.values()].flatMap(({ files }) => files)); // versions of a message share its files
  const files = [...gone].flatMap((one) => tree.turns.get(one)?.files ?? []).filter((file) => !used.has(file));
  const sibling = siblings.filter((one) => one !== id).at(-1);
  const before = { turn: tree.answers.get(turn.after[0])?.turn ?? "", answers: turn.after };
  session.tree = rest;
  answers.forEach((one) => running.get(one.id)?.abort.abort());
  const head = sibling ? descend(rest, endAt(rest, sibling)) : before;
  await changeRecord({ head, updated: Date.now() }, { gone: { turns: [...gone], answers: answers.map((one) => one.id), files } });
}

/** Return `{conversation, turn}` of the conversations in which `words` occur. */
export const find = store.findText;
export const listPresets = store.listPresets;

/** Store settings under a name, and return them with their id. @param {Omit<Preset, "id">} values @returns {Promise<Preset>} */
export async function savePreset(values) {
  const preset = { ...values, id: store.newId() };
  await store.storePreset(preset);
  tellPresets();
  return preset;
}

/** @param {string} id */
export async function removePreset(id) {
  await store.deletePreset(id);
  tellPresets();
}

/** @param {string} turn @param {number} pane @param {string} model @returns {AnswerRecord} */
function makeAnswer(turn, pane, model) {
  const { id: conversation } = session.conversation;
  return { id: store.newId(), conversation, turn, pane, model, at: Date.now(), saved: 0, state: "writing", error: "", messages: [makeMessage()], stream: makeStream() };
}

async function loadList() {
  try {
    for (const answer of await restoreLeft()) write(answer);
    const rows = await store.listConversations();
    const known = new Set(session.list.map(({ id }) => id));
    session.list = [...session.list, ...rows.filter(({ id }) => !known.has(id))];
    announce();
  } catch {
    loading = null; // the next write says what is wrong
  }
}

/**
 * Add a turn with an answer of each model, and have the answers written.
 * @param {{ text: string, files: (Attachment | string)[], after: string[] }} message @param {Partial<Conversation>} patch
 */
async function addTurn({ text, files, after }, patch = {}) {
  const id = patch.id ?? session.conversation.id;
  const added = files.filter((file) => typeof file !== "string").map((file) => ({ ...file, id: store.newId(), conversation: id }));
  const kept = files.filter((file) => typeof file === "string");
  const turn = { id: store.newId(), conversation: id, after, at: Date.now(), text, files: [...kept, ...added.map((file) => file.id)] };
  session.conversation = { ...session.conversation, ...patch };
  const answers = session.conversation.models.map((model, pane) => makeAnswer(turn.id, pane, model));
  added.forEach((file) => session.files.set(file.id, file));
  session.tree.turns.set(turn.id, turn);
  answers.forEach((answer) => session.tree.answers.set(answer.id, answer));
  const head = { turn: turn.id, answers: answers.map((answer) => answer.id) };
  const stored = changeRecord({ ...patch, head, updated: Date.now() }, { turns: [turn], answers, files: added });
  await Promise.all([stored, ...answers.map(request)]);
}

/** @param {string} id @param {Message[]} messages */
async function goOn(id, messages) {
  /** @type {AnswerRecord} */
  const answer = { .../** @type {AnswerRecord} */ (session.tree.answers.get(id)), state: "writing", error: "", stream: makeStream() };
  answer.messages = [...answer.messages, ...messages];
  /** @type {Message} */ (answer.messages.at(-1)).stats = {};
  session.tree.answers.set(id, answer);
  await Promise.all([changeRecord({}, { answers: [answer] }), request(answer)]);
}

/** Have the last message of an answer written, after what its pane has seen. @param {AnswerRecord} answer */
async function request(answer) {
  const { conversation } = session;
  const step = session.path.findIndex(({ turn }) => turn.id === answer.turn);
  const history = listHistory(session.path.slice(0, step + 1), answer.pane);
  /** @type {Exchange} */ (history.at(-1)).answer = answer;
  const { files } = session;
  const makeBody = async () => makeRequest(conversation, answer.model, history, files, await findTools(answer.model, conversation));
  await write(answer, makeBody, (options) => useTools(answer, conversation, options));
}

/** Change fields of the conversation that is shown, and store them with new records. @param {Partial<Conversation>} fields @param {Records} records */
async function changeRecord(fields, records = {}) {
  const { conversation } = session;
  session.conversation = { ...conversation, ...fields };
  replaceRow(session.conversation);
  refresh();
  if (!session.conversation.id) return;
  await attempt(keep(session.conversation.id, { patch: fields, ...records }));
}

function tellPresets() {
  tell({ kind: "presets" });
  changes.dispatchEvent(new Event("presets"));
}

