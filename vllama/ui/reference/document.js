/** The description of the API: its operations, and schemas as rows of a table. */

import { BASE } from "../server.js";

/** Return the operations of the document that the server gives, in groups by their tags. @returns {Promise<{ version: string, text: string, groups: OperationGroup[] }>} */
export async function loadDocument() {
  const response = await fetch(new URL("openapi.json", BASE));
  /** @type {Root} */
  const root = await response.json();
  const operations = Object.entries(root.paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([method]) => method !== "head" || !methods.get) // the same without a body
      .map(([method, described]) => ({ ...described, path, method, root })),
  );
  return {
    version: root.info.version,
    text: root.info.description,
    groups: root.tags.map(({ name, description }) => ({
      name,
      description,
      operations: operations.filter((one) => one.tags[0] === name),
    })),
  };
}

/** Tell whether an operation has all words of a search. @param {Operation} operation @param {string} search */
export function matches(operation, search) {
  const { method, path, summary, description = "" } = operation;
  const text = `${method} ${path} ${summary} ${description}`.toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** Return the schema that a reference leads to, or that one that may also be null; others as they are. @param {Root} root @param {Schema} schema @returns {Schema} */
export function resolve(root, schema = {}) {
  const forms = schema.anyOf?.filter((one) => one.type !== "null");
  if (forms?.length === 1 && !schema.properties) return resolve(root, forms[0]);
  const name = schema.$ref?.split("/").pop();
  return name ? { ...root.components.schemas[name], name } : schema;
}

/** Return the type of a schema in a few words. @param {Root} root @param {Schema} [schema] @returns {string} */
export function typeName(root, schema) {
  const found = resolve(root, schema);
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.enum) return found.enum.filter((one) => one !== null && one !== "").map((one) => JSON.stringify(one)).join(" | ");
  const forms = (found.anyOf ?? []).filter((one) => one.type || one.enum || one.$ref);
  if (!found.type && forms.length) {
    return [...new Set(forms.map((one) => typeName(root, one)))].filter(Boolean).join(" | ");
  }
  const types = [found.type ?? "any"].flat().filter((one) => one !== "null");
  return types
    .map((type) => {
      if (type === "array") return `list of ${typeName(root, found.items)}`;
      return type === "object" && (found.name ?? found.title) ? lastPart(found) : type;
    })
    .join(" | ");
}

/** @param {Schema} schema */
const lastPart = (schema) => (schema.name ?? schema.title ?? "").split(".").pop();

/** Return the fields of a schema, and of the schemas in it, as rows: name, type, required, help. @param {Root} root @param {Schema} schema @returns {Field[]} */
export function listFields(root, schema, depth = 0) {
  const found = resolve(root, schema);
  const required = new Set(found.required ?? []);
  return Object.entries(found.properties ?? {}).flatMap(([name, field]) => {
    const inner = resolve(root, resolve(root, field).items ?? field);
    const nested = depth < 3 && inner.properties ? listFields(root, inner, depth + 1) : [];
    return [
      {
        name,
        type: typeName(root, field),
        required: required.has(name),
        help: field.description ?? "",
      },
      ...nested.map((row) => ({ ...row, name: `${name}.${row.name}` })),
    ];
  });
}
