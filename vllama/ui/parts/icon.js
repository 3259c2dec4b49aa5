/** Icons: shapes of 24 × 24 that take the color of the text. What they mean, the button says. */

import { html } from "../vendor/lit-html/lit-html.js";

/** @type {Record<string, string>} */
const SHAPES = {
  attach: "M19 11.5 11.5 19a4.5 4.5 0 0 1-6.4-6.4L13 4.7A3 3 0 0 1 17.3 9l-8 7.9a1.5 1.5 0 0 1-2.1-2.1L14.5 8",
  again: "M20 11a8 8 0 1 0-2.3 6M20 5v6h-6",
  close: "M6 6l12 12M18 6 6 18",
  columns: "M4 5h16v14H4zM12 5v14",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  dark: "M20 14.5A8 8 0 1 1 9.5 4a6.5 6.5 0 0 0 10.5 10.5z",
  down: "M12 4v15M6 13l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  left: "M15 5l-7 7 7 7",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6 19 19M5 19l1.4-1.4M17.6 6.4 19 5",
  menu: "M4 6h16M4 12h16M4 18h10",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  plus: "M12 5v14M5 12h14",
  right: "M9 5l7 7-7 7",
  sliders: "M4 8h9M18 8h2M4 16h2M11 16h9M15.5 5.5v5M8.5 13.5v5",
  stop: "M7 7h10v10H7z",
  swap: "M4 8h15M15 4l4 4-4 4M20 16H5M9 12l-4 4 4 4",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  trash: "M4 7h16M10 7V4h4v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
  up: "M12 20V5M6 11l6-6 6 6",
};

/** @param {string} name */
export const icon = (name) =>
  html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${SHAPES[name]}></path></svg>`;
