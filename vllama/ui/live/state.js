/**
 * What the server has told of itself, kept up to date by the event stream (docs/reference/events.md).
 *
 * Views read `state` and listen on `changes` for the topics that they show.
 */

const HOUR_S = 3600;
const MOST_ENDED = 200;

/** @type {State} */
export const state = {
  connection: { status: "connecting" },
  version: "",
  models: new Map(),
  requests: new Map(),
  ended: [],
  pulls: new Map(),
  samples: [],
  marks: [],
};

/** Events named after what has changed: connection, models, disk, requests, pulls, samples, marks. */
export const changes = new EventTarget();

const TOPICS = ["models", "disk", "requests", "pulls", "samples", "marks"];

/** @type {{ [Name in keyof Events]: (data: Events[Name]) => void }} */
const HANDLERS = {
  snapshot(data) {
    state.version = data.version;
    state.models = byKey(data.models, "name");
    state.requests = byKey(data.requests, "id");
    state.ended = (data.ended ?? []).toReversed();
    state.pulls = byKey(data.pulls, "name");
    state.samples = data.samples ?? [];
    state.marks = data.marks ?? [];
    setConnection({ status: "live" });
    TOPICS.forEach(announce);
  },
  models(data) {
    for (const row of data.models ?? []) state.models.set(row.name, row);
    for (const name of data.gone ?? []) state.models.delete(name);
    announce("models");
  },
  library() {
    announce("disk");
  },
  requests(data) {
    for (const row of data.requests ?? []) state.requests.set(row.id, row);
    for (const row of data.ended ?? []) state.ended.unshift(row);
    for (const id of data.gone ?? []) state.requests.delete(id);
    state.ended.length = Math.min(state.ended.length, MOST_ENDED);
    announce("requests");
  },
  pulls(data) {
    for (const row of data.pulls ?? []) state.pulls.set(row.name, row);
    announce("pulls");
  },
  sample(data) {
    state.samples.push(data);
    drop(state.samples, data.time);
    drop(state.marks, data.time);
    announce("samples");
  },
  mark(data) {
    state.marks.push(data);
    announce("marks");
  },
};

/** Take over one event of the stream; unknown ones are for newer pages. @template {keyof Events} Name @param {Name} name @param {Events[Name]} data */
export function apply(name, data) {
  HANDLERS[name]?.(data);
}

/** Note how the connection is: `{status: connecting | live | lost | forbidden | locked, reason, retryAt}`. @param {Connection} connection */
export function setConnection(connection) {
  state.connection = connection;
  announce("connection");
}

/** Tell whether the server wants a key and the user has given none. */
export const isWithoutKey = () => state.connection.status === "locked";

/** Tell whether the page may not see what the server does: its key lacks the scope `read`, or it has none. */
export const mayNotRead = () => isWithoutKey() || state.connection.status === "forbidden";

/** Show a download that has ended no longer. @param {string} name */
export function forgetPull(name) {
  state.pulls.delete(name);
  announce("pulls");
}

/** Return the row of a model that is loaded, loading or failed, by any of its names. @param {string} name */
export function findLive(name) {
  const rows = state.models;
  return rows.get(name) ?? [...rows.values()].find((row) => row.other_names.includes(name));
}

/** Return the names of all models that share an engine. @param {ModelRow} [live] */
export const listSharing = (live) => (live ? [live.name, ...live.other_names] : []);

/** @param {string} topic */
function announce(topic) {
  changes.dispatchEvent(new Event(topic));
}

/** @template {object} Row @param {Row[] | null | undefined} rows @param {keyof Row} key @returns {Map<any, Row>} */
function byKey(rows, key) {
  return new Map((rows ?? []).map((row) => [row[key], row]));
}

/** @param {{ time: number }[]} rows @param {number} now */
function drop(rows, now) {
  while (rows.length && rows[0].time < now - HOUR_S) rows.shift();
}
