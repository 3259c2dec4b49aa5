/** Addresses within the page: `#/logs/NAME?key=value`. */

/** Return the page, the parts after it, and the query of the address. */
export function readRoute() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...parts] = path.split("/").map(decodeURIComponent);
  return { page, parts, query: new URLSearchParams(query) };
}

/** Return the address of a page; `query` leaves out what is undefined. @param {string} page @param {string} [part] @param {Record<string, string | undefined>} query */
export function linkTo(page, part, query = {}) {
  const given = /** @type {[string, string][]} */ (Object.entries(query).filter(([, value]) => value !== undefined));
  const path = part === undefined ? page : `${page}/${encodeURIComponent(part)}`;
  return `#/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}
