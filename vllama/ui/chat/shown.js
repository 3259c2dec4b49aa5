/**
 * What this tab shows of the conversations. Records (see store.js) are replaced when they change, but
 * for an answer while it is written here.
 */

import { changes } from "../live/state.js";
import { keep } from "../parts/keep.js";
import { listPath, makeTree } from "./tree.js";

const LAST_MODEL = "last-model";

/** The answers that are written here: id → {answer, abort}. They go on when another page is shown. @type {Map<string, { answer: AnswerRecord, abort: AbortController }>} */
export const running = new Map();

/** @type {Session} */
export const session = {
  list: [],
  conversation: makeConversation(),
  tree: makeTree(),
  path: [],
  files: new Map(),
  trouble: null,
  opened: 0,
};

/** Return a new conversation; it gets its id with its first message. @param {string} [model] @returns {Conversation} */
export function makeConversation(model) {
  const models = [model ?? localStorage.getItem(LAST_MODEL) ?? ""];
  return { id: "", title: "New conversation", titled: false, models, system: "", think: "", tools: "", off: [], options: {}, head: null };
}

/** Remember the model for new conversations. @param {string} model */
export const rememberModel = (model) => keep(localStorage, LAST_MODEL, model);

/** Show a conversation. @param {Conversation} conversation @param {Tree} tree @param {StoredFile[]} files */
export function show(conversation, tree = makeTree(), files = []) {
  session.conversation = conversation;
  session.tree = tree;
  session.files = new Map(files.map((file) => [file.id, file]));
  session.opened += 1;
  refresh();
}

/** Put a conversation's own record into the list. @param {Conversation} row */
export function replaceRow(row) {
  if (!row.id) return;
  const others = session.list.filter(({ id }) => id !== row.id);
  session.list = [row, ...others].sort((a, b) => Number(b.updated) - Number(a.updated));
}

/** Show conversations no more: they were deleted. @param {string[]} ids */
export function forget(ids) {
  session.list = session.list.filter(({ id }) => !ids.includes(id));
  for (const { answer, abort } of running.values()) {
    if (ids.includes(answer.conversation)) abort.abort();
  }
  if (ids.includes(session.conversation.id)) show(makeConversation());
  else announce();
}

/** Show what has changed in the tree. */
export function refresh() {
  session.path = listPath(session.tree, session.conversation.head);
  announce();
}

export function announce() {
  changes.dispatchEvent(new Event("chat"));
}

/** Return whether an answer is being written: "here", "elsewhere" (in another tab), or "". @param {string} id */
export function isWriting(id) {
  if (running.has(id)) return "here";
  return session.tree.answers.get(id)?.state === "writing" ? "elsewhere" : "";
}
