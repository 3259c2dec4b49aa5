/** Tables by their columns, and sections under a heading. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";

/**
 * Return a table of the classes `kind`: the first column has the headings of the rows. `key` tells rows
 * apart (those without controls need none), `mark` gives a row a class.
 * @template Row @param {string} kind @param {Column<Row>[]} columns @param {Row[]} rows
 * @param {{ key?: (row: Row) => unknown, mark?: (row: Row) => string }} options
 */
export function table(kind, columns, rows, { key = (row) => row, mark = () => "" } = {}) {
  const [[, heading], ...others] = columns;
  return html`<table class=${kind}>
    <thead>
      <tr>
        ${columns.map(([label, , role = ""]) => html`<th scope="col" class=${role}>${role === "actions" ? html`<span class="hidden">${label}</span>` : label}</th>`)}
      </tr>
    </thead>
    <tbody>
      ${repeat(rows, key, (row) => html`<tr class=${mark(row)}>
        <th scope="row">${heading(row)}</th>
        ${others.map(([label, show, role = ""]) => html`<td class=${role} data-label=${role === "actions" ? nothing : label}>${show(row)}</td>`)}
      </tr>`)}
    </tbody>
  </table>`;
}

/** Return content under a heading; `note` stands behind that, such as how many there are. @param {string} title @param {Renderable} content @param {Renderable} [note] */
export function section(title, content, note = nothing) {
  const id = `${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}-title`;
  return html`<section aria-labelledby=${id}>
    <h2 id=${id}>${title} <span class="muted">${note}</span></h2>
    ${content}
  </section>`;
}
