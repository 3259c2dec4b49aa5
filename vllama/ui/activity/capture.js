/** The bodies of a request that has ended, if the server captures them (docs/reference/captures.md). */

import { showDialog } from "../parts/dialogs.js";
import { showError } from "../parts/notices.js";
import { ask } from "../server.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

/** Show a capture, by its id: what the answer says, and on demand how it was sent. */
export async function showCapture(id) {
  try {
    const capture = await ask(`api/captures/${encodeURIComponent(id)}`);
    const { request, answer, model, engine, error, texts } = capture;
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
        ${texts.map(
          ({ name, text, cut }) => html`${name === "text" ? nothing : html`<h4>${name}</h4>`}
            <pre tabindex="0">${indent(text)}${cut ? "\n(the limit of tokens was reached)" : nothing}</pre>`,
        )}
        <details ?open=${!texts.length}>
          <summary>As it was sent</summary>
          <pre tabindex="0">${indent(readAnswer(answer))}</pre>
        </details>
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
