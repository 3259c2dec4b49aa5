/** Having an answer written, and stored as it grows; also one that an earlier page has begun. */

import { send } from "../server.js";
import { makeStream, streamAnswer } from "./answer.js";
import { saveGrowing } from "./saving.js";
import { announce, refresh, running, session } from "./shown.js";

const MOST_STEPS = 20; // of tools, before the user is asked to go on

/**
 * Have the last message of an answer written: by the request that `makeBody` returns, or else by the one
 * that an earlier page has sent. `callTools` adds the results that a message asks for, and tells whether it goes on.
 * @param {AnswerRecord} answer @param {() => Promise<object>} [makeBody] @param {(options: { signal: AbortSignal, onChange: () => void }) => Promise<boolean>} [callTools]
 */
export async function write(answer, makeBody, callTools) {
  answer.stream ??= makeStream(); // an earlier version of this page made none
  const abort = new AbortController();
  abort.signal.addEventListener("abort", () => stopStream(/** @type {AnswerStream} */ (answer.stream).id)); // it would go on without this page
  const saving = saveGrowing(answer, () => abort.abort());
  running.set(answer.id, { answer, abort });
  if (session.tree.answers.has(answer.id)) session.tree.answers.set(answer.id, answer);
  refresh();
  const onChange = () => {
    saving.note();
    announce();
  };
  const { signal } = abort;
  /** @type {{ state: string, error: string }} */
  let end = { state: "done", error: "" };
  for (let step = 0; ; step++) {
    const last = /** @type {GrowingMessage} */ (answer.messages.at(-1));
    const isAnswered = step === 0 && last.tool_calls?.length && (makeBody || last.stats.done); // its tools come first
    if (!isAnswered) end = await streamAnswer(makeBody, last, { stream: answer.stream, signal, onChange });
    if (end.state !== "done" || step === MOST_STEPS || !(await callTools?.({ signal, onChange }))) break;
  }
  if (signal.aborted) end = { state: "stopped", error: "" };
  Object.assign(answer, end);
  running.delete(answer.id);
  if (session.tree.answers.has(answer.id)) session.tree.answers.set(answer.id, { ...answer });
  refresh();
  await saving.finish();
}

/** Stop a request, wherever it was sent from. @param {string} id */
const stopStream = (id) => send(`api/requests/${id}`, { method: "DELETE" }).catch(() => {}); // it has ended
