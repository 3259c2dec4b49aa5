/** Texts that the browser saves as files. */

/** @param {string} text @param {string} type @param {string} name */
export function download(text, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name.replace(/[^\w.-]+/g, "-").slice(-60);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
