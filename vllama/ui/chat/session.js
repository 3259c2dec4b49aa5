/**
 * The conversations of this browser, and the answers that are being written.
 *
 * It outlives the view: an answer goes on while the user looks at another page. A conversation has
 * `turns`; each turn has the user's `text`, `images` and `texts` (files), and the `answers` of one or
 * two models, which are lists of messages (several if tools were called).
 */

import { changes } from "../live/state.js";
import { showError } from "../parts/notices.js";
import { streamAnswer } from "./answer.js";
import { deleteConversation, listConversations, saveConversation } from "./conversations.js";

const LAST_MODEL = "last-model";
const TITLE_LENGTH = 60;

export const session = { list: [], current: null };

const running = new Map(); // message lists that are being written → AbortController
let loading = null;

/** Read the stored conversations, once. */
export function loadConversations() {
  loading ??= listConversations().then((list) => {
    session.list = [...session.list, ...list];
    announce();
  });
  return loading;
}

/** Begin a conversation; it is stored with its first message. */
export function begin(model) {
  session.current = {
    id: `${Date.now()}-${Math.random().toString(36).slice(2)}`,
    title: "New conversation",
    updated: Date.now(),
    models: [model ?? localStorage.getItem(LAST_MODEL) ?? ""],
    system: "",
    think: "",
    tools: "",
    turns: [],
  };
  announce();
}

/** Show a stored conversation. */
export function choose(conversation) {
  session.current = conversation;
  announce();
}

/** Change fields of the current conversation. */
export function change(fields) {
  Object.assign(session.current, fields);
  if (fields.models) localStorage.setItem(LAST_MODEL, fields.models[0]);
  if (session.current.turns.length) save(session.current);
  announce();
}

/** Send a message to the models of the current conversation. */
export function say({ text, images, texts }) {
  const conversation = session.current;
  if (!conversation.turns.length) {
    conversation.title = text.trim().split("\n")[0].slice(0, TITLE_LENGTH) || texts[0]?.name || "Image";
    session.list = [conversation, ...session.list];
  }
  conversation.turns.push({ text, images, texts, answers: conversation.models.map(() => []) });
  return Promise.all(conversation.models.map((_, pane) => write(conversation, pane)));
}

/** Have the last answer of one model written again. */
export function regenerate(pane) {
  const conversation = session.current;
  conversation.turns.at(-1).answers[pane] = [];
  return write(conversation, pane);
}

/** Give the results of a model's tool calls, and let it go on. `results`: name and content. */
export function answerTools(pane, results) {
  const conversation = session.current;
  const messages = results.map(({ name, content }) => ({ role: "tool", tool_name: name, content }));
  conversation.turns.at(-1).answers[pane].push(...messages);
  return write(conversation, pane);
}

/** Stop all answers of the current conversation. */
export function stop() {
  for (const { answers } of session.current.turns) {
    for (const messages of answers) running.get(messages)?.abort();
  }
}

/** Whether an answer is being written: into these messages, or anywhere in the conversation. */
export const isWriting = (messages) => running.has(messages);
export const isBusy = (conversation) => conversation.turns.at(-1)?.answers.some(isWriting) ?? false;

/** Delete conversations for good. */
export async function forget(conversations) {
  try {
    await Promise.all(conversations.map(({ id }) => deleteConversation(id)));
  } catch (error) {
    showError(error);
  }
  session.list = session.list.filter((one) => !conversations.includes(one));
  if (conversations.includes(session.current)) begin();
  announce();
}

async function write(conversation, pane) {
  const messages = conversation.turns.at(-1).answers[pane];
  const abort = new AbortController();
  running.set(messages, abort);
  save(conversation);
  await streamAnswer(conversation, pane, { signal: abort.signal, onChange: announce });
  running.delete(messages);
  save(conversation);
  announce();
}

function save(conversation) {
  conversation.updated = Date.now();
  saveConversation(conversation).catch(() =>
    console.warn("this browser keeps no conversations: they are lost with this tab"),
  );
}

function announce() {
  changes.dispatchEvent(new Event("chat"));
}
