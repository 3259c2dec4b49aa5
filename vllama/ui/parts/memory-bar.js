/** Memory as a picture: one bar for a device, with a legend that has the same numbers as text. */

import { memorySize } from "../format.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";

/**
 * Return a bar of `totalBytes` with `parts` from left to right; what is left is free.
 * @param {{ title: string, totalBytes: number, parts: MemoryPart[], freeBytes?: number }} device
 */
export function memoryBar({ title, totalBytes, parts, freeBytes }) {
  const shown = parts.filter((part) => part.bytes > 0);
  const sum = shown.reduce((bytes, part) => bytes + part.bytes, 0);
  const scale = 100 / Math.max(totalBytes, sum, 1);
  const free = freeBytes ?? Math.max(0, totalBytes - sum);
  const exceeds = sum > totalBytes;
  return html`<figure class="memory">
    <figcaption><strong>${title}</strong> <span>${memorySize(totalBytes)}</span></figcaption>
    <div class="bar" aria-hidden="true">
      ${shown.map(
        (part, index) => html`<span
          class="${part.kind} tone-${part.tone ?? index % 4}"
          title="${part.label}: ${memorySize(part.bytes)}"
          .style=${`width:${part.bytes * scale}%`}
        ><b>${part.label}</b><b>${memorySize(part.bytes)}</b></span>`,
      )}
      ${exceeds
        ? html`<i class="limit" .style=${`left:${totalBytes * scale}%`}></i>`
        : html`<span class="rest"><b>free</b><b>${memorySize(free)}</b></span>`}
    </div>
    <ul class="legend">
      ${shown.map(
        (part, index) => html`<li>
          <i class="${part.kind} tone-${part.tone ?? index % 4}" aria-hidden="true"></i>${part.label}
          <b>${memorySize(part.bytes)}</b>${part.note ? ` · ${part.note}` : nothing}
        </li>`,
      )}
      ${exceeds
        ? html`<li class="missing">missing <b>${memorySize(sum - totalBytes)}</b></li>`
        : html`<li><i class="free" aria-hidden="true"></i>free <b>${memorySize(free)}</b></li>`}
    </ul>
  </figure>`;
}
