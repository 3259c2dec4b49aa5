/** The conversations, which are kept in this browser only (IndexedDB). */

const DATABASE = "vllama";
const STORE = "conversations";

/** Return all conversations, the latest first. */
export async function listConversations() {
  const rows = await withStore("readonly", (store) => store.getAll());
  return rows.sort((a, b) => b.updated - a.updated);
}

/** Store a conversation, which must have an `id`. */
export const saveConversation = (conversation) =>
  withStore("readwrite", (store) => store.put(conversation));

export const deleteConversation = (id) => withStore("readwrite", (store) => store.delete(id));

/** Let the user save conversations as a JSON file. */
export function exportConversations(conversations, name) {
  const text = JSON.stringify({ conversations }, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `${name.replace(/[^\w-]+/g, "-").slice(0, 60) || "conversation"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

let database = null;

async function withStore(mode, work) {
  database ??= openDatabase();
  const transaction = (await database).transaction(STORE, mode);
  return settle(work(transaction.objectStore(STORE)));
}

function openDatabase() {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return settle(request);
}

function settle(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
