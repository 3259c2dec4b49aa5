/** The tree of a conversation: `turns` and `answers` are Maps of its records by id (see store.js). Pure. */

/** @type {(a: Turn | AnswerRecord, b: Turn | AnswerRecord) => number} */
const byTime = (a, b) => a.at - b.at || (a.id < b.id ? -1 : 1);
/** @type {(a: string[], b: string[]) => boolean} */
const isSame = (a, b) => a.length === b.length && a.every((id, index) => id === b[index]);

/** Return a tree of lists of records. @param {{ turns?: Turn[], answers?: AnswerRecord[] }} records @returns {Tree} */
export const makeTree = ({ turns = [], answers = [] } = {}) => ({ turns: byId(turns), answers: byId(answers) });

/** @template {{ id: string }} Item @param {Item[]} records */
const byId = (records) => new Map(records.map((record) => [record.id, record]));

/** Return the branch that ends at `head`, from its beginning. @param {Tree} tree @param {Head | null} head */
export function listPath(tree, head) {
  /** @type {Step[]} */
  const path = [];
  /** @type {{ turn?: string, answers: string[] } | null} */
  let place = head;
  while (place) {
    const turn = tree.turns.get(place.turn ?? "");
    if (!turn) break;
    const answers = place.answers.map((id) => tree.answers.get(id)).filter((answer) => answer !== undefined);
    path.unshift({
      turn,
      answers,
      siblings: listFollowing(tree, turn.after).map(({ id }) => id),
      versions: answers.map(({ pane }) => listVersions(tree, turn.id, pane).map(({ id }) => id)),
    });
    place = { turn: tree.answers.get(turn.after[0])?.turn, answers: turn.after };
  }
  return path;
}

/** Return the end of the newest branch that goes on from `head`. @param {Tree} tree @param {Head} head @returns {Head} */
export function descend(tree, head) {
  const next = listFollowing(tree, head.answers).at(-1);
  return next && head.answers.length ? descend(tree, endAt(tree, next.id)) : head;
}

/** Return the head of a turn with the newest answer of each pane. @param {Tree} tree @param {string} turn @returns {Head} */
export function endAt(tree, turn) {
  const newest = new Map([...tree.answers.values()].filter((answer) => answer.turn === turn).sort(byTime).map((answer) => [answer.pane, answer.id]));
  return { turn, answers: [...newest].sort(([a], [b]) => a - b).map(([, id]) => id) };
}

/** Return the ids of a turn and of all turns that follow it. @param {Tree} tree @param {string} id @returns {string[]} */
export function listBelow(tree, id) {
  const next = [...tree.turns.values()].filter(({ after }) => after.some((one) => tree.answers.get(one)?.turn === id));
  return [id, ...next.flatMap((turn) => listBelow(tree, turn.id))];
}

/** Return `path` as one pane has seen it: pairs of a turn and an answer, which may be undefined. @param {Step[]} path @param {number} pane @returns {Exchange[]} */
export const listHistory = (path, pane) =>
  // before a second model was added, the first one answered
  path.map(({ turn, answers }) => ({ turn, answer: answers.find((answer) => answer.pane === pane) ?? answers[0] }));

/** @param {Tree} tree @param {string[]} answers */
const listFollowing = (tree, answers) =>
  [...tree.turns.values()].filter(({ after }) => isSame(after, answers)).sort(byTime);

/** @param {Tree} tree @param {string} turn @param {number} pane */
const listVersions = (tree, turn, pane) =>
  [...tree.answers.values()].filter((answer) => answer.turn === turn && answer.pane === pane).sort(byTime);
