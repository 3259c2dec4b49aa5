/** The bodies of a request that has ended, if the server captures them (docs/reference/captures.md). */

import { indent } from "../format.js";
import { showDialog } from "../parts/dialogs.js";
import { showError } from "../parts/notices.js";
import { ask, ServerError } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import "./replay.js";

const gone = new Set(); // ids of captures that were removed to make room for newer ones

/** Tell whether a capture was found to be gone. @param {string} id */
export const isGone = (id) => gone.has(id);

/** Show a capture, by its id: what the answer says, and on demand how it was sent. @param {string} id @param {() => void} update */
export async function showCapture(id, update) {
  let capture;
  try {
    capture = await ask(`api/captures/${encodeURIComponent(id)}`);
  } catch (error) {
    const isMissing = error instanceof ServerError && error.status === 404;
    if (isMissing) gone.add(id);
    showError(isMissing ? Object.assign(error, { message: "Its capture has been removed to make room for newer ones." }) : error);
    update();
    return;
  }
  const { request, answer, model, engine, error, texts } = capture;
  await showDialog(
    `${request.method} ${request.path}`,
    html`
      <p>
        ${new Date(capture.received_at).toLocaleString("en-GB")}, status ${answer.status}${model ? html`, ${model.name}` : nothing}${engine
          ? html`, ${engine.name} ${engine.version}`
          : nothing}
      </p>
      ${error ? html`<p class="error">${error.message}</p>` : nothing}
      <request-replay .capture=${capture}></request-replay>
      <h3>Request</h3>
      <pre tabindex="0">${indent(readBody(request.body))}</pre>
      <h3>Response</h3>
      ${texts.map(
        ({ name, text, cut }) => html`${name === "text" ? nothing : html`<h4>${name}</h4>`}
          <pre tabindex="0">${indent(text)}${cut ? "\n(token limit reached)" : nothing}</pre>`,
      )}
      <details ?open=${!texts.length}>
        <summary>As sent</summary>
        <pre tabindex="0">${indent(readAnswer(answer))}</pre>
      </details>
    `,
  );
}

/** @param {{ encoding: string, data: string, cut?: boolean }} body */
function readBody({ encoding, data, cut }) {
  if (encoding !== "utf-8") return "(not text)";
  return cut ? `${data}\n(the rest was not captured)` : data;
}

/** @param {Capture["answer"]} answer */
function readAnswer({ encoding, parts, cut }) {
  return readBody({ encoding, data: parts.map(([, data]) => data).join(""), cut });
}
