/** Conversations in the form of version 1, one record each, as the records of version 2 (see store.js). */

/** Convert all conversations, within the transaction of the upgrade. @param {IDBTransaction} transaction @param {() => string} newId */
export function convertAll(transaction, newId) {
  const conversations = transaction.objectStore("conversations");
  const cursor = conversations.openCursor();
  cursor.onsuccess = () => {
    const row = cursor.result;
    if (!row) return;
    const { conversation, ...parts } = convert(row.value, newId);
    row.update(conversation);
    for (const [name, records] of Object.entries(parts)) {
      records.forEach((record) => transaction.objectStore(name).put(record));
    }
    row.continue();
  };
}

/**
 * Return `{conversation, turns, answers, files}` of a conversation of version 1.
 * @param {OldConversation} old @param {() => string} newId @returns {Stored & { files: StoredFile[] }}
 */
export function convert(old, newId) {
  const { id, title, updated, models, system = "", think = "", tools = "" } = old;
  /** @type {Omit<Stored, "conversation"> & { files: StoredFile[] }} */
  const parts = { turns: [], answers: [], files: [] };
  /** @type {string[]} */
  let after = [];
  old.turns.forEach(({ text, images, texts = [], answers }, index) => {
    const at = updated - (old.turns.length - index);
    const files = [
      ...images.map((url) => ({ kind: /** @type {const} */ ("image"), name: "", blob: makeBlob(url) })),
      ...texts.map((file) => ({ kind: /** @type {const} */ ("text"), ...file })),
    ].map((file) => ({ id: newId(), conversation: id, ...file }));
    const turn = { id: newId(), conversation: id, after, at, text, files: files.map((file) => file.id) };
    const made = answers
      .map((messages, pane) => ({ messages, pane }))
      .filter(({ messages }) => messages.length)
      .map(({ messages, pane }) => makeAnswer(messages, { conversation: id, turn: turn.id, pane, at, id: newId() }));
    parts.turns.push(turn);
    parts.answers.push(...made);
    parts.files.push(...files);
    after = made.map((answer) => answer.id);
  });
  const last = parts.turns.at(-1);
  const head = last ? { turn: last.id, answers: after } : null;
  const conversation = { id, title, titled: false, created: updated, updated, models, system, think, tools, options: {}, head };
  return { conversation, ...parts };
}

/**
 * @param {OldMessage[]} messages @param {Pick<AnswerRecord, "id" | "conversation" | "turn" | "pane" | "at">} place
 * @returns {AnswerRecord}
 */
function makeAnswer(messages, place) {
  const { model = "", error = "", stopped } = /** @type {OldMessage} */ (messages.at(-1));
  const state = error ? "failed" : stopped ? "stopped" : "done";
  const kept = messages.map(({ model: _, error: __, stopped: ___, ...message }) => message);
  return { ...place, model: messages[0].model ?? model, state, error, messages: kept, saved: place.at };
}

/** Return the content of a data URL; the page's policy forbids to fetch one. @param {string} url */
export function makeBlob(url) {
  const [head, data] = url.split(",");
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  return new Blob([bytes], { type: /^data:([^;,]*)/.exec(head)?.[1] ?? "" });
}
