/**
 * The conversations of this browser (IndexedDB), shared by all its tabs.
 *
 * A conversation is a tree: a turn (what the user said) follows the answers in its `after`, and each
 * answer belongs to a turn. So an edit adds a turn, a regeneration adds an answer, and no write ever
 * touches what another tab has written. Every function here is one transaction;
 * types.d.ts describes the records.
 */

const DATABASE = "vllama";
const VERSION = 2;
const PARTS = ["turns", "answers", "files"];

/** @type {Promise<IDBDatabase> | null} */
let opening = null;
/** @type {(kind: string) => void} */
let report = () => {};

/** The conversation was deleted meanwhile. */
export class Gone extends Error {}

/** Call `listener` with "blocked", "outdated" or "open" when the state of the database changes. @param {(kind: string) => void} listener */
export function watchDatabase(listener) {
  report = listener;
}

/** Return a new id; ids sort by the time at which they were made. */
export function newId() {
  const random = crypto.getRandomValues(new Uint32Array(2)); // randomUUID needs https
  return Date.now().toString(36) + [...random].map((number) => number.toString(36).padStart(7, "0")).join("");
}

/** Return the conversations' own records, the latest first. @returns {Promise<Conversation[]>} */
export const listConversations = () =>
  transact(["conversations"], "readonly", async (store) => {
    const rows = await settle(store("conversations").index("updated").getAll());
    return rows.reverse();
  });

/** Return a conversation with its turns and answers; null if it is not there. @param {string} id @returns {Promise<Stored | null>} */
export const readConversation = (id) =>
  transact(["conversations", "turns", "answers"], "readonly", async (store) => {
    const [conversation, turns, answers] = await Promise.all([
      settle(store("conversations").get(id)),
      settle(store("turns").index("conversation").getAll(id)),
      settle(store("answers").index("conversation").getAll(id)),
    ]);
    return conversation ? { conversation, turns, answers } : null;
  });

/**
 * Return some records of a conversation: its own, and those turns and answers.
 * @param {string} id @param {string[]} turns @param {string[]} answers
 * @returns {Promise<Partial<Stored> & Omit<Stored, "conversation">>}
 */
export const readRecords = (id, turns, answers) =>
  transact(["conversations", "turns", "answers"], "readonly", async (store) => {
    /** @param {string} name @param {string[]} ids */
    const read = (name, ids) => Promise.all(ids.map((one) => settle(store(name).get(one))));
    const [conversation, ...parts] = await Promise.all([
      settle(store("conversations").get(id)),
      read("turns", turns),
      read("answers", answers),
    ]);
    const [foundTurns, foundAnswers] = parts.map((records) => records.filter(Boolean));
    return { conversation, turns: foundTurns, answers: foundAnswers };
  });

/** Return files by their ids; what is not there is left out. @param {string[]} ids @returns {Promise<StoredFile[]>} */
export const readFiles = (ids) =>
  transact(["files"], "readonly", async (store) => {
    const found = await Promise.all(ids.map((id) => settle(store("files").get(id))));
    return found.filter(Boolean);
  });

/**
 * Store records of a conversation, and delete those of the ids in `gone`. `patch` is merged into its own record; one with `created` makes
 * the conversation. Throws Gone if the conversation is not there.
 * @param {string} id @param {Records} records @param {IDBTransactionOptions} [options]
 */
export const storeRecords = (id, { patch = {}, turns = [], answers = [], files = [], gone }, options) =>
  transact(["conversations", ...PARTS], "readwrite", async (store) => {
    const stored = await settle(store("conversations").get(id));
    if (!stored && !patch.created) throw new Gone("the conversation was deleted");
    const isOlder = Number(patch.updated) < stored?.updated; // another tab has gone on meanwhile
    const { head, updated } = isOlder ? stored : { ...stored, ...patch };
    store("conversations").put({ ...stored, ...patch, head, updated, id });
    turns.forEach((turn) => store("turns").put(turn));
    for (const name of PARTS) gone?.[name].forEach((key) => store(name).delete(key));
    for (const answer of answers) {
      if (await settle(store("turns").count(answer.turn))) store("answers").put(answer);
      else if (answers.length === 1) throw new Gone("the message was deleted");
    }
    files.forEach((file) => store("files").put(file));
  }, options);

/**
 * Claim an answer for this tab, if nobody has saved it since `saved`; return its record, else null.
 * @param {string} id @param {number} saved @returns {Promise<AnswerRecord | null>}
 */
export const claimAnswer = (id, saved) =>
  transact(["answers"], "readwrite", async (store) => {
    const answer = await settle(store("answers").get(id));
    if (answer?.state !== "writing" || answer.saved !== saved) return null;
    const claimed = { ...answer, saved: Date.now() };
    store("answers").put(claimed);
    return claimed;
  });

/** Delete conversations with all that belongs to them. @param {string[]} ids */
export const deleteConversations = (ids) =>
  transact(["conversations", ...PARTS], "readwrite", async (store) => {
    for (const id of ids) {
      store("conversations").delete(id);
      for (const name of PARTS) {
        const keys = await settle(store(name).index("conversation").getAllKeys(id));
        keys.forEach((key) => store(name).delete(key));
      }
    }
  });

/** Return `{conversation, turn}` of the newest turn of each conversation in which `words` occur. @param {string} words @param {AbortSignal} signal @returns {Promise<Hit[]>} */
export async function findText(words, signal) {
  const wanted = words.toLowerCase();
  /** @type {[Turn[], AnswerRecord[]]} */
  const [turns, answers] = await transact(["turns", "answers"], "readonly", (store) =>
    Promise.all([settle(store("turns").getAll()), settle(store("answers").getAll())]),
  );
  signal?.throwIfAborted();
  /** @param {string} text */
  const has = (text) => text?.toLowerCase().includes(wanted);
  const hits = [
    ...turns.filter(({ text }) => has(text)).map(({ conversation, id }) => ({ conversation, turn: id })),
    ...answers
      .filter(({ messages }) => messages.some(({ content }) => has(content)))
      .map(({ conversation, turn }) => ({ conversation, turn })),
  ].sort((a, b) => (a.turn < b.turn ? -1 : 1));
  return [...new Map(hits.map((hit) => [hit.conversation, hit])).values()];
}

/** @returns {Promise<Preset[]>} */
export const listPresets = () => transact(["presets"], "readonly", (store) => settle(store("presets").getAll()));

/** @param {Preset} preset */
export const storePreset = (preset) =>
  transact(["presets"], "readwrite", async (store) => void store("presets").put(preset));

/** @param {string} id */
export const deletePreset = (id) =>
  transact(["presets"], "readwrite", async (store) => void store("presets").delete(id));

/**
 * Run `work` in one transaction; what it returns counts when the transaction is complete.
 * @template Result @param {string[]} names @param {IDBTransactionMode} mode
 * @param {(store: (name: string) => IDBObjectStore) => Promise<Result>} work @param {IDBTransactionOptions} [options]
 * @returns {Promise<Result>}
 */
async function transact(names, mode, work, options) {
  opening ??= openDatabase();
  const transaction = (await opening).transaction(names, mode, options);
  const ended = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser aborted the transaction"));
  });
  ended.catch(() => {}); // below, unless `work` fails first
  let result;
  try {
    result = await work((name) => transaction.objectStore(name));
  } catch (error) {
    const cause = transaction.error ?? error; // what has ended it, if it has ended
    if (!transaction.error) transaction.abort();
    throw cause;
  }
  await ended;
  return result;
}

/** @returns {Promise<IDBDatabase>} */
function openDatabase() {
  const request = indexedDB.open(DATABASE, VERSION);
  request.onupgradeneeded = () => {
    const { result: database } = request;
    for (const name of database.objectStoreNames) database.deleteObjectStore(name); // version 1 was before 0.2.0
    database.createObjectStore("conversations", { keyPath: "id" }).createIndex("updated", "updated");
    for (const name of PARTS) database.createObjectStore(name, { keyPath: "id" }).createIndex("conversation", "conversation");
    database.createObjectStore("presets", { keyPath: "id" });
  };
  request.onblocked = () => report("blocked"); // a tab with the page of an earlier version is open
  return settle(request).then(
    (database) => {
      database.onversionchange = () => {
        database.close();
        report("outdated");
      };
      report("open");
      return database;
    },
    (error) => {
      opening = null;
      throw error;
    },
  );
}

/** @template Result @param {IDBRequest<Result>} request @returns {Promise<Result>} */
function settle(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
