/** Having an answer written, and stored as it grows; also one that an earlier page has begun. */

import { send } from "../server.js";
import { makeStream, streamAnswer } from "./answer.js";
import { saveGrowing } from "./saving.js";
import { announce, refresh, running, session } from "./shown.js";

/**
 * Have the last message of an answer written: by the request that `makeBody` returns, or else by the one
 * that an earlier page has sent.
 * @param {AnswerRecord} answer @param {() => Promise<object>} [makeBody]
 */
export async function write(answer, makeBody) {
  const stream = (answer.stream ??= makeStream()); // an earlier version of this page made none
  const abort = new AbortController();
  abort.signal.addEventListener("abort", () => stopStream(stream.id)); // it would go on without this page
  const saving = saveGrowing(answer, () => abort.abort());
  running.set(answer.id, { answer, abort });
  if (session.tree.answers.has(answer.id)) session.tree.answers.set(answer.id, answer);
  refresh();
  const onChange = () => {
    saving.note();
    announce();
  };
  const last = /** @type {GrowingMessage} */ (answer.messages.at(-1));
  const end = await streamAnswer(makeBody, last, { stream, signal: abort.signal, onChange });
  Object.assign(answer, end);
  running.delete(answer.id);
  if (session.tree.answers.has(answer.id)) session.tree.answers.set(answer.id, { ...answer });
  refresh();
  await saving.finish();
}

/** Stop a request, wherever it was sent from. @param {string} id */
const stopStream = (id) => send(`api/requests/${id}`, { method: "DELETE" }).catch(() => {}); // it has ended
