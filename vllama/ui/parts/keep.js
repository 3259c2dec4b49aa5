/** What the browser keeps between two pages, if it has room. */

/** Keep a text under a name, nothing for an empty one; without room it lasts as long as the page. @param {Storage} storage @param {string} name @param {string} text */
export function keep(storage, name, text) {
  try {
    if (text) storage.setItem(name, text);
    else storage.removeItem(name);
  } catch {
    storage.removeItem(name); // full: what was kept before is out of date
  }
}
