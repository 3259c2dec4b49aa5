/**
 * Storing what this tab adds to conversations. What cannot be stored, for want of room say, stays in
 * memory and is tried again with the next change.
 */

import { deleteConversations, Gone, storeRecords, watchDatabase } from "./store.js";
import { tell } from "./tabs.js";

const SAVE_MS = 1000; // a growing answer is saved this often
const LEFT = "left-records"; // in sessionStorage, from one page of this tab to the next
/** @type {Record<string, string>} */
const TEXTS = {
  full: "This browser is out of storage, so new messages are not saved. Export this conversation, or delete others.",
  none: "This browser does not store conversations, perhaps because this is a private window. They are lost when you close this tab.",
  blocked: "Another tab still shows an earlier version of this page. Reload or close it to continue.",
  outdated: "This page was updated in another tab. Reload it; until then, nothing is saved.",
};

/** @type {Map<string, Records>} */
const waiting = new Map(); // conversation → records that are not stored yet
/** @type {Map<AnswerRecord, (options: IDBTransactionOptions) => Promise<unknown>>} */
const growing = new Map(); // answer → how to save it
/** @type {(kind: string | null) => void} */
let onTrouble = () => {};

/** Call `listener` with `{kind, text}` of what keeps conversations from being stored, or null. @param {(trouble: Trouble | null) => void} listener */
export function watchTrouble(listener) {
  onTrouble = (kind) => listener(kind ? { kind, text: TEXTS[kind] } : null);
  watchDatabase((kind) => onTrouble(kind === "open" ? null : kind));
}

/**
 * Store records of a conversation (see `storeRecords`), and tell the other tabs. Throws Gone.
 * @param {string} id @param {Records} records @param {IDBTransactionOptions} [options]
 */
export async function keep(id, records, options) {
  const all = merge(waiting.get(id), records);
  waiting.set(id, all);
  try {
    await storeRecords(id, all, options);
  } catch (error) {
    if (error instanceof Gone) {
      waiting.delete(id);
      throw error;
    }
    onTrouble(nameTrouble(error));
    return;
  }
  if (waiting.get(id) === all) waiting.delete(id);
  if (!waiting.size) onTrouble(null);
  /** @param {"turns" | "answers"} name */
  const ids = (name) => [...(all[name] ?? []).map((record) => record.id), ...(all.gone?.[name] ?? [])];
  tell({ kind: "changed", conversation: id, turns: ids("turns"), answers: ids("answers") });
}

/** Delete conversations here and for the other tabs. @param {string[]} ids */
export async function discard(ids) {
  await deleteConversations(ids);
  ids.forEach((id) => waiting.delete(id));
  tell({ kind: "gone", ids });
}

/**
 * Return how to save `answer` while it grows: `note()` after each change, `finish()` at its end.
 * `onGone` is called when its conversation was deleted.
 * @param {AnswerRecord} answer @param {() => void} onGone
 */
export function saveGrowing(answer, onGone) {
  let timer = 0;
  let begun = false;
  /** @param {IDBTransactionOptions} options */
  const save = (options) => {
    clearTimeout(timer);
    timer = 0;
    answer.saved = Date.now();
    return keep(answer.conversation, { answers: [answer] }, options).catch(onGone);
  };
  growing.set(answer, save);
  return {
    note() {
      if (!begun) save({ durability: "relaxed" });
      else timer ||= setTimeout(save, SAVE_MS, { durability: "relaxed" });
      begun = true;
    },
    finish() {
      growing.delete(answer);
      return save({ durability: "strict" });
    },
  };
}

addEventListener("visibilitychange", () => {
  if (document.hidden) growing.forEach((save) => save({ durability: "relaxed" }));
});

// The tab may be closed now, and no transaction would be completed: a reload stores what is left here.
addEventListener("pagehide", () => {
  for (const answer of growing.keys()) waiting.set(answer.conversation, merge(waiting.get(answer.conversation), { answers: [answer] }));
  if (!waiting.size) return;
  try {
    sessionStorage.setItem(LEFT, JSON.stringify([...waiting], (_, value) => (Array.isArray(value) ? value.filter((one) => !one?.blob) : value)));
  } catch {
    // too long: what was saved within the last second is there
  }
});

addEventListener("pageshow", (event) => event.persisted && sessionStorage.removeItem(LEFT)); // it goes on

/** Store what was not stored before a reload, but for images, and return the answers that were being written. */
export async function restoreLeft() {
  /** @type {[string, Records][]} */
  const left = JSON.parse(sessionStorage.getItem(LEFT) ?? "[]");
  sessionStorage.removeItem(LEFT);
  await Promise.all(left.map(([id, records]) => keep(id, records).catch(() => {})));
  return left.flatMap(([, { answers = [] }]) => answers).filter(({ state }) => state === "writing");
}

/** @param {any} error */
function nameTrouble(error) {
  if (error.name === "QuotaExceededError") return "full";
  return error.name === "InvalidStateError" ? "outdated" : "none";
}

/** @param {Records | undefined} before @param {Records} records @returns {Records} */
function merge(before = {}, records) {
  /** @type {any} */
  const merged = { patch: { ...before.patch, ...records.patch }, gone: {} };
  for (const name of /** @type {const} */ (["turns", "answers", "files"])) {
    const all = [...(before[name] ?? []), ...(records[name] ?? [])];
    const gone = [...(before.gone?.[name] ?? []), ...(records.gone?.[name] ?? [])];
    merged.gone[name] = gone;
    merged[name] = [...new Map(all.map((record) => [record.id, record])).values()].filter(({ id }) => !gone.includes(id));
  }
  return merged;
}
