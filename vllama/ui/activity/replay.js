/** Sends a captured request again, and shows how the answer and what made it differ. */

import { duration, rate } from "../format.js";
import { table } from "../parts/table.js";
import { ask, explain, send, ServerError } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

const PAUSE_MS = 200;
const MOST_LOOKS = 50; // for the capture of the new answer, which is written after its end
const AROUND = 40; // characters shown before a difference
/** @type {[string, (capture: Capture) => unknown][]} */
const FACTS = [
  ["Engine", ({ engine }) => engine && `${engine.name} ${engine.version}`],
  ["Model", ({ model }) => model && `${model.name} ${model.digest.slice(0, 19)}`],
  ["Quantization", ({ model }) => model?.quantization],
  ["Context", ({ engine }) => engine?.context_length],
  ["Parallel requests", ({ engine }) => engine?.parallel],
  ["Threads", ({ engine }) => engine?.threads],
  ["GPU layers", ({ engine }) => engine?.gpu_layers],
  ["KV cache type", ({ engine }) => engine?.kv_cache_type],
  ["Flash attention", ({ engine }) => engine?.flash_attention],
  ["Arguments", ({ engine }) => engine?.extra_args?.join(" ")],
  ["Sampling", ({ engine }) => engine && JSON.stringify(engine.sampling)],
  ["Settings", ({ settings }) => JSON.stringify(settings)],
  ["vllama", ({ vllama }) => vllama],
  ["Status", ({ answer }) => answer.status],
];
/** @type {[string, (capture: Capture) => string][]} */
const TIMES = [
  ["Time to first token", ({ times }) => duration(times.first_token_s)],
  ["Total", ({ times }) => duration(times.total_s)],
  ["Tokens/s", ({ tokens }) => rate(tokens?.per_s)],
];

class RequestReplay extends View {
  /** @type {Capture} */ capture; // set before it is shown
  /** @type {Capture | null} */ again = null;
  problem = "";
  running = false;

  template() {
    const { body } = this.capture.request;
    const isWhole = body.encoding === "utf-8" && !body.cut && body.data.trim().startsWith("{");
    return html`
      <div class="row">
        <button type="button" ?disabled=${!isWhole || this.running} @click=${this.replay}>${this.running ? "Waiting for the response …" : "Replay"}</button>
        <span class="muted">${isWhole ? "Sends the request to this server again and compares the responses." : "This request cannot be replayed here: its body is not JSON, or was not captured in full."}</span>
      </div>
      <div role="status">${this.problem ? html`<p class="error">${this.problem}</p>` : nothing}${this.again ? this.verdict() : nothing}</div>
    `;
  }

  async replay() {
    const { path, body } = this.capture.request;
    this.change({ running: true, problem: "", again: null });
    try {
      const response = await send(path.slice(1), { method: "POST", body: JSON.parse(body.data) });
      await response.text();
      this.again = await readCapture(String(response.headers.get("x-request-id")));
    } catch (error) {
      this.problem = `Cannot replay: ${explain(error)}`;
    }
    this.change({ running: false });
  }

  verdict() {
    const before = this.capture;
    const now = /** @type {Capture} */ (this.again);
    const difference = findDifference(readText(before), readText(now));
    const rows = FACTS.map(([label, read]) => [label, text(read(before)), text(read(now)), true]).filter(([, a, b]) => a !== b);
    const all = [...rows, ...TIMES.map(([label, read]) => [label, read(before), read(now), false])];
    /** @type {Column<typeof all[number]>[]} */
    const columns = [
      [rows.length ? "What differs" : "Nothing else differs", ([label]) => label],
      ["Captured", ([, captured]) => captured],
      ["Replayed", ([, , replayed]) => replayed],
    ];
    return html`
      <div class="verdict ${difference ? "bad" : "good"}">
        ${difference
          ? html`<p><strong>The responses differ</strong> at character ${difference.at + 1}.${mayDiffer(before) ? html` Possible cause: ${mayDiffer(before)}.` : nothing}</p>
              <p>Captured: ${difference.start}<mark>${difference.before || "(end)"}</mark><br />Replayed: ${difference.start}<mark>${difference.now || "(end)"}</mark></p>`
          : html`<p><strong>Same response.</strong></p>`}
      </div>
      ${table("plain", columns, all, { mark: ([, , , isFact]) => (isFact ? "taken" : "") })}
    `;
  }
}

/** Return the capture of a request by its id, once it is written. @param {string} id @returns {Promise<Capture>} */
async function readCapture(id) {
  for (let look = 1; ; look += 1) {
    try {
      return await ask(`api/captures/${encodeURIComponent(id)}`);
    } catch (error) {
      if (!(error instanceof ServerError) || error.status !== 404 || look === MOST_LOOKS) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

/** @param {Capture} capture */
const readText = ({ texts }) => texts.map(({ name, text: said }) => (name === "text" ? said : `${name}: ${said}`)).join("\n");
/** @param {unknown} value */
const text = (value) => (value === null || value === undefined || value === "" ? "–" : String(value));

/** Return why an answer may differ from run to run, "" if it should not. @param {Capture} capture */
function mayDiffer({ engine }) {
  const { temperature, seed } = engine?.sampling ?? {};
  if (temperature === 0) return "";
  return seed === undefined || seed === null || seed < 0 ? `temperature ${temperature ?? "unset"}, no seed` : "";
}

/** Return where two texts differ first, with the words there; null if they are the same. @param {string} before @param {string} now */
function findDifference(before, now) {
  if (before === now) return null;
  let at = 0;
  while (at < before.length && before[at] === now[at]) at += 1;
  /** @param {string} one */
  const word = (one) => one.slice(at, at + AROUND);
  return { at, start: (at > AROUND ? "…" : "") + before.slice(Math.max(0, at - AROUND), at), before: word(before), now: word(now) };
}

customElements.define("request-replay", RequestReplay);
