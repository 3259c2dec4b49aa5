// Calls a server with the types that openapi-typescript generated: node calls.js URL.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };
type Schemas = components["schemas"];

const url = process.argv[2]!;
const client = createClient<paths, "application/json">({ baseUrl: url });
const messages = [{ role: "user", content: "Hi" }];

function check(holds: unknown, what: string): asserts holds {
  if (!holds) throw new Error(what);
}

async function listLines(path: string, body: unknown): Promise<string[]> {
  const answer = await fetch(url + path, { method: "POST", body: JSON.stringify(body) });
  return (await answer.text()).split("\n").filter((line) => line);
}

const version = await client.GET("/api/version");
check(version.data?.vllama, "version");
const tags = await client.GET("/api/tags");
check(tags.data?.models.some((one) => one.name === "plain:latest"), "tags");
const chat = await client.POST("/api/chat", { body: { model: "plain", messages, stream: false } });
check(chat.data?.message.content && chat.data.done, "chat");
const generated = await client.POST("/api/generate", {
  body: { model: "plain", prompt: "Hi", stream: false },
});
check(generated.data?.response, "generate");
const vectors = await client.POST("/api/embed", { body: { model: "vectors", input: ["a", "b"] } });
check(vectors.data?.embeddings.length === 2, "embed");
const shown = await client.POST("/api/show", { body: { model: "plain" } });
check(shown.data?.model_info, "show");
const counted = await client.POST("/api/tokenize", { body: { model: "plain", text: "Hi" } });
check(counted.data?.count, "tokenize");
const models = await client.GET("/v1/models");
check(models.data?.data.length, "models");
const completion = await client.POST("/v1/chat/completions", { body: { model: "plain", messages } });
check(completion.data?.choices[0]?.message.content, "chat completion");
const response = await client.POST("/v1/responses", { body: { model: "plain", input: "Hi" } });
check(response.data?.output?.[0]?.content?.[0]?.text, "response");
const message = await client.POST("/v1/messages", {
  body: { model: "plain", max_tokens: 9, messages },
});
check(message.data?.content[0]?.type === "text" && message.data.content[0].text, "message");
const engines = await client.GET("/api/engines");
check(engines.data?.engines.length, "engines");
const missing = await client.POST("/api/chat", { body: { model: "nope", messages } });
check(missing.error?.error.includes("nope"), "error");

const lines = (await listLines("/api/chat", { model: "plain", messages })).map(
  (line): Schemas["ChatAnswer"] => JSON.parse(line),
);
check(lines.map((one) => one.message.content).join("") === chat.data.message.content, "stream");
const events = await listLines("/v1/chat/completions", { model: "plain", messages, stream: true });
check(events.pop() === "data: [DONE]", "the end of the stream");
const chunks = events.map((line): Schemas["ChatChunk"] => JSON.parse(line.slice("data: ".length)));
const text = chunks.map((one) => one.choices[0]?.delta.content ?? "").join("");
check(text === completion.data.choices[0]!.message.content, "stream of chunks");
