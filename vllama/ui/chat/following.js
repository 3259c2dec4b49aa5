/** What other tabs do with the conversations, and with the answers that this tab shows. */

import { changes } from "../live/state.js";
import { showError, showSuccess } from "../parts/notices.js";
import { readText } from "./drafts.js";
import { watchTrouble } from "./saving.js";
import { announce, forget, isWriting, refresh, replaceRow, running, session } from "./shown.js";
import { claimAnswer, readFiles, readRecords } from "./store.js";
import { isWrittenElsewhere, listenToTabs } from "./tabs.js";
import { write } from "./writing.js";

const LOOK_MS = 5000; // at answers of other tabs, which may have crashed

/** Show what another tab, or an import, has stored. @param {{ conversation: string, turns: string[], answers: string[] }} changed */
export async function takeOver({ conversation: id, turns, answers }) {
  const found = await readRecords(id, turns, answers);
  if (!found.conversation) return;
  replaceRow(found.conversation);
  if (id !== session.conversation.id) {
    announce();
    return;
  }
  const files = await readFiles(found.turns.flatMap((turn) => turn.files));
  if (id !== session.conversation.id) return; // the user has opened another one meanwhile
  files.forEach((file) => session.files.set(file.id, file));
  turns.forEach((turn) => session.tree.turns.delete(turn)); // what is not found was deleted
  answers.forEach((answer) => running.has(answer) || session.tree.answers.delete(answer));
  found.turns.forEach((turn) => session.tree.turns.set(turn.id, turn));
  for (const answer of found.answers) {
    if (!running.has(answer.id)) session.tree.answers.set(answer.id, answer);
  }
  const ours = session.conversation;
  const isOlder = Number(found.conversation.updated) < Number(ours.updated); // it was read before ours was stored
  const { head, updated } = isOlder ? ours : found.conversation;
  session.conversation = { ...found.conversation, head: staysHere() && session.tree.turns.has(ours.head?.turn ?? "") ? ours.head : head, updated };
  refresh();
  look();
}

/** Tell whether the user is busy with the branch that is shown: something is written, here or by the model. */
function staysHere() {
  const { id } = session.conversation;
  const isBusy = [...running.values()].some(({ answer }) => answer.conversation === id);
  return isBusy || Boolean(readText(id));
}

let looking = 0;

/** See whether the tabs that write what is shown are still there; the answer of one that is gone is taken up here. */
export async function look() {
  clearTimeout(looking);
  const shown = session.path.flatMap(({ answers }) => answers).filter(({ id }) => isWriting(id) === "elsewhere");
  for (const { id, saved } of shown) {
    if (await isWrittenElsewhere(id)) continue;
    const answer = await claimAnswer(id, saved);
    // the tab's last words were stored after this one read them
    if (!answer) return takeOver({ conversation: session.conversation.id, turns: [], answers: [id] });
    if (!running.has(id)) write(answer);
  }
  if (shown.length) looking = setTimeout(look, LOOK_MS);
}

watchTrouble((trouble) => {
  session.trouble = trouble;
  announce();
});

listenToTabs(
  {
    changed: (message) => takeOver(message).catch(showError),
    stop: ({ id }) => running.get(id)?.abort.abort(),
    gone({ ids }) {
      const isShown = ids.includes(session.conversation.id);
      forget(ids);
      if (isShown) showSuccess("This conversation was deleted in another tab.");
    },
    presets: () => changes.dispatchEvent(new Event("presets")),
  },
  (id) => running.has(id),
);
