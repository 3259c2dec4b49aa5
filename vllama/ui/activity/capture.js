/** The bodies of a request that has ended, if the server captures them (docs/reference/captures.md). */

import { showDialog } from "../parts/dialogs.js";
import { showError } from "../parts/notices.js";
import { ask } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

/** Tell whether the server captures requests, and lets the user see them. */
export async function areCaptured() {
  try {
    return (await ask("api/captures")).enabled;
  } catch {
    return false;
  }
}

/** Show the capture of a request, by the request's id. */
export async function showCapture(id) {
  try {
    const capture = await ask(`api/captures/${encodeURIComponent(id)}`);
    const { request, answer, model, engine, error } = capture;
    await showDialog(
      `${request.method} ${request.path}`,
      html`
        <p>
          ${capture.received_at}, status ${answer.status}${model ? html`, ${model.name}` : nothing}${engine
            ? html`, ${engine.name} ${engine.version}`
            : nothing}. The commands show more of it: <code>vllama requests ${capture.id}</code>
        </p>
        ${error ? html`<p class="error">${error.message}</p>` : nothing}
        <h3>Request</h3>
        <pre tabindex="0">${indent(readBody(request.body))}</pre>
        <h3>Answer</h3>
        <pre tabindex="0">${indent(readAnswer(answer))}</pre>
      `,
    );
  } catch (error) {
    showError(error);
  }
}

function readBody({ encoding, data, cut }) {
  if (encoding !== "utf-8") return "(it is no text)";
  return cut ? `${data}\n(the rest was not kept)` : data;
}

function readAnswer({ encoding, parts, cut }) {
  return readBody({ encoding, data: parts.map(([, data]) => data).join(""), cut });
}

/** Return JSON in lines that can be read, and any other text unchanged. */
function indent(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
