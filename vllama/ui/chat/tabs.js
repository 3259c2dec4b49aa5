/**
 * What the tabs of this browser tell each other. A message only names records that were stored: whoever
 * needs them reads them. `who` asks which tab writes an answer, because a closed or crashed one cannot
 * say that it is gone, and Web Locks need https.
 */

const PATIENCE_MS = 1500;

const channel = new BroadcastChannel("vllama-chat");
/** @type {Map<string, (isWritten: boolean) => void>} */
const asked = new Map(); // id of an answer → resolve

/** Tell the other tabs something: an object with a `kind`. @param {TabMessage} message */
export const tell = (message) => channel.postMessage(message);

/**
 * Call `listeners[kind]` with each message of another tab; `isOurs` tells which answers are written here.
 * @param {{ [Kind in TabMessage["kind"]]?: (message: Extract<TabMessage, { kind: Kind }>) => void }} listeners
 * @param {(id: string) => boolean} isOurs
 */
export function listenToTabs(listeners, isOurs) {
  channel.onmessage = ({ data }) => {
    if (data.kind === "who") {
      if (isOurs(data.id)) tell({ kind: "mine", id: data.id });
    } else if (data.kind === "mine") {
      asked.get(data.id)?.(true);
    } else {
      /** @type {Record<string, (message: TabMessage) => void>} */ (listeners)[data.kind]?.(data);
    }
  };
}

/** Return whether another tab is writing an answer. @param {string} id @returns {Promise<boolean>} */
export async function isWrittenElsewhere(id) {
  const answered = new Promise((resolve) => {
    asked.set(id, resolve);
    setTimeout(() => resolve(false), PATIENCE_MS);
  });
  tell({ kind: "who", id });
  const isWritten = await answered;
  asked.delete(id);
  return isWritten;
}
