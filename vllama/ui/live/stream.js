/**
 * The stream of server-sent events, `/api/events`, read with fetch because it may need a key.
 *
 * It is opened again, with growing pauses, whenever it ends; each new stream begins with a snapshot.
 * Without a key, or with one that may not read it, it ends: only another key would change that.
 */

import { explain, isForbidden, isLocked, readEvents, send } from "../server.js";
import { apply, setConnection } from "./state.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
const SILENCE_MS = 45_000; // the server sends a comment every 15 s

let wake = () => {};

/** Follow the server for as long as the page is open. */
export async function follow() {
  addEventListener("online", reconnect);
  document.addEventListener("visibilitychange", () => document.hidden || reconnect());
  let pause = FIRST_PAUSE_MS;
  for (;;) {
    let reason = "the server closed the stream";
    try {
      await read(() => (pause = FIRST_PAUSE_MS));
    } catch (error) {
      reason = explain(error);
      if (isForbidden(error) || isLocked(error)) {
        setConnection({ status: isLocked(error) ? "locked" : "forbidden" });
        return;
      }
    }
    setConnection({ status: "lost", reason, retryAt: Date.now() + pause });
    await rest(pause);
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}

/** Try again now, if the connection is lost. */
export function reconnect() {
  wake();
}

/** @param {() => void} onSnapshot */
async function read(onSnapshot) {
  const abort = new AbortController();
  const giveUp = () => abort.abort(new TypeError("the server or the network does not respond"));
  let timer = 0;
  const expectMore = () => {
    clearTimeout(timer);
    timer = setTimeout(giveUp, SILENCE_MS);
  };
  addEventListener("offline", giveUp);
  try {
    expectMore();
    const response = await send("api/events", { signal: abort.signal });
    for await (const { name, data } of readEvents(response)) {
      expectMore();
      if (data) apply(/** @type {keyof Events} */ (name), JSON.parse(data));
      if (name === "snapshot") onSnapshot();
    }
  } finally {
    clearTimeout(timer);
    removeEventListener("offline", giveUp);
  }
}

/** @param {number} milliseconds @returns {Promise<void>} */
const rest = (milliseconds) =>
  new Promise((resolve) => {
    wake = resolve;
    setTimeout(resolve, milliseconds);
  });
