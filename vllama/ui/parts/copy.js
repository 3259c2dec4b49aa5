/** Copying text, with a sign that it worked. */

const SIGN_MS = 2000;

/** Copy text, also where the page has no `navigator.clipboard` because it came over plain http. @param {string} text */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  const area = document.createElement("textarea");
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area); // all else is inert under a dialog
  area.select();
  document.execCommand("copy");
  area.remove();
  focused?.focus();
}

/** Copy text for a button, which says so for a moment. @param {HTMLElement} button @param {string} text */
export async function copyFrom(button, text) {
  await copyText(text);
  const words = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = words), SIGN_MS);
}
