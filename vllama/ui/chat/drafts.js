/**
 * Messages that are not sent yet, by conversation. Their texts are in sessionStorage, so that a reload
 * loses none; their files only last as long as the page.
 */

import { keep } from "../parts/keep.js";

const KEY = "draft-";

/** @type {Map<string, string>} */
const texts = new Map();
/** @type {Map<string, Attachment[]>} */
const files = new Map();

/** Return the text that was written into a conversation's field. @param {string} id */
export const readText = (id) => texts.get(id) ?? sessionStorage.getItem(KEY + id) ?? "";

/** @param {string} id @param {string} text */
export function keepText(id, text) {
  texts.set(id, text);
  keep(sessionStorage, KEY + id, text);
}

/** @param {string} id */
export const readFiles = (id) => files.get(id) ?? [];

/** @param {string} id @param {Attachment[]} list */
export const keepFiles = (id, list) => void files.set(id, list);
