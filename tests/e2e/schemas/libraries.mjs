// JSON schemas of zod 3 (zod-to-json-schema), zod 4 and TypeBox, for `make.py`: printed as JSON.
// Beside it: npm install zod@4 zod3@npm:zod@3 zod-to-json-schema@3 @sinclair/typebox@0.34
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(`${process.cwd()}/`);
const { z: four } = require("zod");
const { z: three } = require("zod3");
const { zodToJsonSchema } = require("zod-to-json-schema");
const { Type: T } = require("@sinclair/typebox");
const version = (name) =>
  JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8")).version;

// in both versions of zod
const both = (z) => {
  const node = z.object({ value: z.number(), get: z.lazy(() => node).optional() });
  const cat = z.object({ kind: z.literal("cat"), lives: z.number().int().min(0).max(9) });
  const dog = z.object({ kind: z.literal("dog"), name: z.string().min(1) });
  return {
    strings: z.object({
      url: z.string().url(), mail: z.string().email(), id: z.string().uuid(),
      cuid: z.string().cuid(), at: z.string().datetime(), short: z.string().min(2).max(8),
      exact: z.string().length(4), starts: z.string().startsWith("a"),
      ends: z.string().endsWith("z"), has: z.string().includes("b"),
      matches: z.string().regex(/^[a-f0-9]{8}$/), ahead: z.string().regex(/^(?=.*\d)\w{4,9}$/),
      emoji: z.string().emoji().optional(), base64: z.string().base64().optional(),
      trimmed: z.string().trim().min(1),
    }),
    "url only": z.object({ url: z.string().url() }),
    numbers: z.object({
      whole: z.number().int(), positive: z.number().positive(), range: z.number().min(0).max(1),
      step: z.number().multipleOf(5), safe: z.number().int().nonnegative().optional(),
    }),
    lists: z.object({
      list: z.array(z.string()).min(1).max(3), tuple: z.tuple([z.number(), z.string()]),
      rest: z.tuple([z.string()]).rest(z.number()), set: z.array(z.enum(["a", "b"])).nonempty(),
    }),
    records: z.object({
      record: z.record(z.string(), z.number()),
      keyed: z.record(z.string().regex(/^[a-z]+$/), z.boolean()),
    }),
    "record of enum": z.object({ scores: z.record(z.enum(["a", "b"]), z.number().int()) }),
    unions: z.object({
      pet: z.discriminatedUnion("kind", [cat, dog]), either: z.union([z.string(), z.number()]),
      nullable: z.string().nullable(), optional: z.string().optional(), nullish: z.number().nullish(),
      value: z.literal(5), missing: z.null(),
    }),
    intersection: z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })),
    strict: z.object({ a: z.string() }).strict(),
    loose: z.object({ a: z.string() }).passthrough(),
    "catch all": z.object({ a: z.string() }).catchall(z.number()),
    recursive: node,
    unknown: z.object({ any: z.any(), unknown: z.unknown(), defaulted: z.number().default(3) }),
    partial: cat.partial(),
    "native enum": z.object({ level: z.nativeEnum({ LOW: 1, HIGH: 9, NAME: "n" }) }),
    refined: z.object({ a: z.string().refine((x) => x.length > 1) }),
  };
};

const found = {};
for (const [name, schema] of Object.entries(both(three))) {
  found[`zod ${version("zod3")}: ${name}`] = zodToJsonSchema(schema);
  found[`zod ${version("zod3")}, for OpenAI: ${name}`] = zodToJsonSchema(schema, {
    target: "openAi",
  });
}
const three_only = { "set and date": three.object({ s: three.set(three.string()), d: three.date() }),
  "map": three.object({ m: three.map(three.string(), three.number()) }), "never": three.object({ n: three.never().optional() }) };
for (const [name, schema] of Object.entries(three_only))
  found[`zod ${version("zod3")}: ${name}`] = zodToJsonSchema(schema);
const mine = {
  ...both(four),
  formats: four.object({
    url: four.url(), mail: four.email(), id: four.uuidv4(), ulid: four.ulid(), four: four.ipv4(),
    six: four.ipv6(), cidr: four.cidrv4(), day: four.iso.date(), clock: four.iso.time(),
    at: four.iso.datetime({ offset: true }), long: four.iso.duration(), phone: four.e164(),
    base64url: four.base64url(), jwt: four.jwt(), nano: four.nanoid(), int: four.int(),
    int32: four.int32(), float32: four.float32(),
  }),
  template: four.object({ size: four.templateLiteral([four.number(), four.enum(["px", "em"])]) }),
  "partial record": four.object({ m: four.partialRecord(four.enum(["a", "b"]), four.string()) }),
  json: four.object({ j: four.json() }),
};
for (const [name, schema] of Object.entries(mine)) {
  for (const io of ["input", "output"])
    try {
      found[`zod ${version("zod")}: ${name} ${io}`] = four.toJSONSchema(schema, { io });
    } catch (error) {
      console.error(name, `${error}`);
    }
  try {
    found[`zod ${version("zod")}, draft 7: ${name}`] = four.toJSONSchema(schema, { target: "draft-7" });
  } catch {}
}
const typed = {
  strings: T.Object({
    url: T.String({ format: "uri" }), mail: T.Optional(T.String({ format: "email" })),
    matches: T.RegExp(/^[a-z]{2,4}$/), template: T.TemplateLiteral("a-${1|2}"),
    short: T.String({ minLength: 1, maxLength: 5 }), date: T.Date(), bytes: T.Uint8Array(),
  }),
  numbers: T.Object({
    whole: T.Integer({ minimum: 0, exclusiveMaximum: 9 }), step: T.Number({ multipleOf: 0.5 }),
    big: T.BigInt(),
  }),
  "plain numbers": T.Object({ step: T.Number({ multipleOf: 0.5 }), low: T.Number({ minimum: 1 }) }),
  lists: T.Object({
    set: T.Array(T.String(), { uniqueItems: true }), tuple: T.Tuple([T.Number(), T.String()]),
    contains: T.Array(T.Number(), { contains: T.Literal(3), minContains: 1 }), none: T.Tuple([]),
  }),
  unions: T.Object({
    either: T.Union([T.Literal("a"), T.Literal("b"), T.Null()]),
    shapes: T.Union([T.Object({ k: T.Literal(1), x: T.Number() }), T.Object({ k: T.Literal(2) })]),
    not: T.Not(T.String()), never: T.Optional(T.Never()), enumeration: T.Enum({ A: 0, B: "b" }),
  }),
  composite: T.Composite([T.Object({ a: T.String() }), T.Object({ b: T.Number() })]),
  intersect: T.Intersect([T.Object({ a: T.String() }), T.Object({ b: T.Number() })], {
    unevaluatedProperties: false,
  }),
  "intersect of schemas": T.Intersect(
    [T.Object({ a: T.String() }), T.Object({ b: T.Number() })], { unevaluatedProperties: T.String() },
  ),
  records: T.Object({
    plain: T.Record(T.String(), T.Number()), keyed: T.Record(T.RegExp(/^[a-z]+$/), T.Boolean()),
    numbered: T.Record(T.Number(), T.String()),
    named: T.Record(T.Union([T.Literal("a"), T.Literal("b")]), T.Integer()),
  }),
  recursive: T.Recursive((This) => T.Object({ id: T.String(), nodes: T.Array(This) }), { $id: "N" }),
  "module": T.Module({ A: T.Object({ b: T.Ref("B") }), B: T.Object({ c: T.String() }) }).Import("A"),
  closed: T.Object({ a: T.String() }, { additionalProperties: false }),
  partial: T.Partial(T.Object({ a: T.String(), b: T.Boolean() })),
  any: T.Object({ any: T.Any(), unknown: T.Unknown(), undefined: T.Optional(T.Undefined()) }),
};
for (const [name, schema] of Object.entries(typed))
  found[`TypeBox ${version("@sinclair/typebox")}: ${name}`] = schema;
console.log(JSON.stringify(found));
