/**
 * The types of the web UI's data, for `tsc` and editors only: the wheel leaves this file out, and the
 * server does not serve it. What the server sends comes from its own description (`make check`).
 */

type Schemas = import("../../.venv/web/api").components["schemas"];

// What the server sends

type ModelRow = Required<Schemas["ModelRow"]>;
type LocalModel = Schemas["LocalModel"];
type RequestRow = Schemas["RequestRow"];
type EndedRow = Schemas["EndedRow"];
type PullRow = Schemas["PullRow"];
type Sample = Schemas["Sample"];
type Mark = Schemas["Mark"];
type NodeRow = Schemas["NodeRow"];
type UsageRow = Schemas["UsageRow"];
type Capture = Schemas["ReadCapture"];
type KeyRow = Schemas["KeyRow"];
type LoadProgress = Schemas["LoadProgress"];
type ChatPart = Schemas["ChatAnswer"];
type ToolCall = Schemas["ToolCall"];

/** A setting; the document has its schema as any object. */
type SettingRow = Omit<Schemas["SettingRow"], "schema"> & { schema: Schema };
type Settings = Omit<Schemas["Settings"], "settings"> & { settings: SettingRow[] };

/** A plan, with the parts that the document has as any object (`vllama/plan/report.py`). */
type Plan = Omit<Schemas["PlanAnswer"], "engines" | "files" | "candidates" | "memory" | "if_it_fails"> & {
  engines: PlanEngine[];
  files: { name: string; size_bytes: number; here: boolean }[];
  candidates: Candidate[];
  memory?: Record<string, number>;
  if_it_fails?: Record<string, { when: string; then: string[] }>;
};
interface PlanEngine {
  engine: string;
  title: string;
  version: string | null;
  taken: boolean;
  reason: string;
}
interface Candidate {
  repository: string;
  quantization: string | null;
  size_bytes: number | null;
  taken: boolean;
  reason: string;
}

/** The events of `/api/events`. */
interface Events {
  snapshot: Omit<Schemas["Snapshot"], "models"> & { models?: ModelRow[] | null };
  models: Omit<Schemas["ChangedModels"], "models"> & { models: ModelRow[] };
  library: Schemas["ChangedLibrary"];
  requests: Schemas["ChangedRequests"];
  pulls: Schemas["ChangedPulls"];
  sample: Sample;
  mark: Mark;
}

/** The answer to a request for a path. */
type Answer<Path extends string> =
  Path extends "api/tags" ? Schemas["Tags"]
  : Path extends "api/plan" ? Plan
  : Path extends "api/fits" ? Schemas["ModelFits"]
  : Path extends "api/show" ? Schemas["ShownModel"]
  : Path extends "api/config" ? Settings
  : Path extends "api/logs" ? Schemas["Logs"]
  : Path extends "api/samples" ? Schemas["Day"]
  : Path extends "api/streams" ? Schemas["Streams"]
  : Path extends "api/nodes" ? Schemas["NodeRows"]
  : Path extends "api/keys" ? Schemas["Keys"]
  : Path extends `api/keys/${string}/rotate` ? KeyRow
  : Path extends `api/captures/${string}` ? Capture
  : Path extends `api/requests/ended?${string}` ? Schemas["EndedRequests"]
  : Path extends `api/search?${string}` ? Schemas["FoundNames"]
  : Path extends `api/usage?${string}` ? Schemas["UsageRows"]
  : unknown;

interface RequestOptions {
  method?: string;
  body?: unknown;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** A part of JSON Schema, as the OpenAPI document and the settings have it. */
interface Schema {
  $ref?: string;
  name?: string;
  title?: string;
  description?: string;
  type?: string | string[];
  const?: unknown;
  enum?: unknown[];
  anyOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  contentSchema?: Schema;
}
type Content = Record<string, { schema: Schema; examples?: Record<string, Example> }>;
interface Example {
  summary: string;
  value: { model?: string };
}
interface Described {
  description: string;
  content?: Content;
}

/** An operation of the OpenAPI document, with its path, its method and the document. */
interface Operation {
  operationId: string;
  path: string;
  method: string;
  root: Root;
  tags: string[];
  summary: string;
  description?: string;
  parameters?: { name: string; in: string; description: string; example?: string }[];
  requestBody?: { content: Content };
  responses: Record<string, Described>;
}
/** A row of the table of a schema. */
interface Field {
  name: string;
  type: string;
  required: boolean;
  help: string;
}
interface OperationGroup {
  name: string;
  description: string;
  operations: Operation[];
}
interface Root {
  info: { version: string; description: string };
  tags: { name: string; description: string }[];
  paths: Record<string, Record<string, Omit<Operation, "path" | "method" | "root">>>;
  components: { schemas: Record<string, Schema> };
}

// What the pages keep

interface Connection {
  status: "connecting" | "live" | "lost" | "forbidden" | "locked";
  reason?: string;
  retryAt?: number;
}

/** What the event stream has told so far. */
interface State {
  connection: Connection;
  version: string;
  /** Loaded, loading and failed ones, by name. */
  models: Map<string, ModelRow>;
  /** Waiting and running ones, by id. */
  requests: Map<string, RequestRow>;
  /** Newest first. */
  ended: EndedRow[];
  /** By name. */
  pulls: Map<string, PullRow>;
  /** Of the last hour, oldest first. */
  samples: Sample[];
  marks: Mark[];
}

/** A model: its rows of `/api/tags` and of the event stream, either of which may be missing. */
interface Model {
  name: string;
  disk?: LocalModel;
  live?: ModelRow;
}

/** An order of models; those of one group stand under a title. */
interface Order {
  label: string;
  compare(a: Model, b: Model): number;
  group?(model: Model): string;
}

/** What the parts of the page of models need of it. */
interface ModelsView {
  opened: Map<string, HTMLElement>;
  readOnly: boolean;
  toggle(name: string): void;
}

interface Filter {
  sort: string;
  text: string;
  model: string;
  key: string;
  errors: string;
}

/** A column of a table: its label, what it shows of a row, and its class. */
type Column<Row> = [label: string, show: (row: Row) => Renderable, role?: string];
/** A column of ended requests. */
interface EndedColumn {
  name: string;
  label: string;
  /** Of numbers: as text. */
  write?: (value: number) => string;
  read(row: EndedRow): number | string | null;
}

type Format = (value: number) => string;
type Values = (number | null)[];
interface Line {
  label: string;
  values: Values;
}
/** Makes a line of what a sample says. */
type LineMaker = (label: string, read: (sample: Sample) => number | null | undefined) => Line;
interface Chart {
  title: string;
  lines: Line[];
  format: Format;
  /** There are values at some times only, so no line is drawn. */
  dots?: boolean;
  /** The distances between the lines of the grid. */
  steps?: number[];
}

interface MemoryPart {
  label: string;
  bytes: number;
  /** With `tone`, its color. */
  kind: "model" | "plan" | "other";
  tone?: number;
  /** Stands behind its size. */
  note?: string;
}

interface Notice {
  text: string;
  kind: "success" | "error";
  unreachable?: boolean;
}

/** The children of a view that it calls. */
interface ListedModels extends HTMLElement {
  page: ModelsView;
  update(): void;
}
interface ListElement extends HTMLElement {
  following: boolean;
  show(rows: string[], template: (row: string, index: number) => Renderable): void;
  scrollToRow(index: number): void;
  scrollToEnd(): void;
}
interface ChartElement extends HTMLElement {
  series: string[];
  range: number;
  plot: Plot | null;
  show(data: [number[], ...Values[]], marks: Mark[]): void;
}
interface TurnElement extends HTMLElement {
  wasWriting: boolean;
  update(): void;
  beginEdit(): void;
}
interface FormElement extends HTMLElement {
  show(about: FormState): void;
  fill(text: string): void;
}
interface HTMLElementTagNameMap {
  "model-list": ListedModels;
  "windowed-list": ListElement;
  "time-chart": ChartElement;
  "chat-turn": TurnElement;
  "message-form": FormElement;
}

// What the chat keeps: Conversation, Turn, AnswerRecord, StoredFile and Preset are records of chat/store.js

/** The end of a branch. */
interface Head {
  turn: string;
  answers: string[];
}
interface ChatOptions extends Record<string, number | string[] | undefined> {
  stop?: string[];
  num_ctx?: number;
}
interface ChatValues {
  system: string;
  think: string;
  tools: string;
  /** Tools of MCP servers that are switched off: "server: tool". */
  off?: string[];
  options?: ChatOptions;
}
interface Preset extends ChatValues {
  id: string;
  name: string;
}
interface Conversation extends ChatValues {
  id: string;
  title: string;
  /** The user has named it. */
  titled: boolean;
  models: string[];
  created?: number;
  updated?: number;
  /** The branch that is shown. */
  head: Head | null;
}
interface Turn {
  id: string;
  conversation: string;
  /** Ids of answers, one per pane; none at the beginning. */
  after: string[];
  at: number;
  text: string;
  /** Their ids. */
  files: string[];
}
interface Stats {
  done?: boolean;
  reason?: string;
  firstTokenS?: number;
  thinkingS?: number;
  promptTokens?: number;
  tokens?: number;
  tokensPerS?: number | null;
  loadS?: number;
}
interface Message {
  role: string;
  content: string;
  thinking?: string;
  tool_calls?: ToolCall[];
  tool_name?: string;
  stats?: Stats;
}
/** A message of a model while it grows. */
type GrowingMessage = Message & { thinking: string; tool_calls: ToolCall[]; stats: Stats };
/** The request that an answer comes from: its id, the bytes that were read of its response, and its start. */
interface AnswerStream {
  id: string;
  at: number;
  since: number;
}
interface AnswerRecord {
  id: string;
  conversation: string;
  turn: string;
  pane: number;
  model: string;
  at: number;
  saved: number;
  /** broken: its page was closed, and the server no longer has the rest. */
  state: "writing" | "done" | "stopped" | "failed" | "broken";
  error: string;
  messages: Message[];
  stream?: AnswerStream;
}
interface Picture {
  kind: "image";
  name: string;
  blob: Blob;
}
interface TextFile {
  kind: "text";
  name: string;
  text: string;
}
type Attachment = Picture | TextFile;
interface Place {
  id: string;
  conversation: string;
}
type StoredFile = (Picture & Place) | (TextFile & Place);

interface Tree {
  turns: Map<string, Turn>;
  answers: Map<string, AnswerRecord>;
}
interface Step {
  turn: Turn;
  /** Those that are shown, one per pane. */
  answers: AnswerRecord[];
  /** Ids of all versions of the turn, itself among them. */
  siblings: string[];
  /** For each answer the ids of all its versions. */
  versions: string[][];
}
type TurnItem = Step & { files: StoredFile[]; isLast: boolean };
interface Exchange {
  turn: Turn;
  answer?: AnswerRecord;
}
interface Records {
  patch?: Partial<Conversation>;
  turns?: Turn[];
  answers?: AnswerRecord[];
  files?: StoredFile[];
  /** The ids of deleted ones. */
  gone?: Record<string, string[]>;
}
interface Stored {
  conversation: Conversation;
  turns: Turn[];
  answers: AnswerRecord[];
}
/** A conversation in an exported file: pictures are data URLs. */
type Exported = Conversation & { turns: Turn[]; answers: AnswerRecord[]; files: (StoredFile & { data?: string })[] };
/** The records of a conversation of a file. */
type Imported = Stored & { files: StoredFile[] };
interface Hit {
  conversation: string;
  turn: string;
}
interface Trouble {
  kind: string;
  text: string;
}
interface Session {
  /** All conversations, the latest first. */
  list: Conversation[];
  conversation: Conversation;
  tree: Tree;
  /** The branch of the conversation that is shown (see chat/tree.js). */
  path: Step[];
  /** What is attached to its turns. */
  files: Map<string, StoredFile>;
  /** What keeps conversations from being stored. */
  trouble: Trouble | null;
  /** Another number whenever another conversation is shown. */
  opened: number;
}
/** What the page of the chat tells its form. */
interface FormState {
  /** Its id, "" for a new one. */
  conversation: string | null;
  /** An answer is being written, so that there is something to stop. */
  busy: boolean;
  /** Which models see no images. */
  blind: string;
  /** The tokens of the context that are taken, and all. */
  used: [number, number] | null;
}
/** A message of one tab to the others. */
type TabMessage =
  | { kind: "who" | "mine" | "stop"; id: string }
  | { kind: "changed"; conversation: string; turns: string[]; answers: string[] }
  | { kind: "gone"; ids: string[] }
  | { kind: "presets" };

// Tools (see chat/mcp.js)

interface McpServer {
  name: string;
  url: string;
  token: string;
}
interface McpTool {
  name: string;
  description: string;
  inputSchema: object;
}
interface McpConnection {
  server: McpServer;
  session: string;
  version: string;
  tools: McpTool[];
}
interface McpState {
  server: McpServer;
  tools: McpTool[];
  problem: string;
}
interface McpChoice {
  server: McpServer;
  tool: McpTool;
}
/** A tool that is called, or with `decide` one that the user is asked about. */
type ToolQuestion = McpChoice & { name: string; decide?: (decision: string) => void };

/** A formula of Markdown, as a token of marked. */
interface Formula {
  type: string;
  raw: string;
  tex: string;
  display: boolean;
}

/** A node of the tree that KaTeX makes. */
interface FormulaNode {
  attributes?: Record<string, string>;
  children?: FormulaNode[];
  toNode(): HTMLElement;
}

// Events and libraries

/** What a template may show. */
type Renderable = object | string | number | bigint | boolean | symbol | null | undefined;


/** What listeners in templates are given: the event of a field, a key or a details element. */
interface FieldEvent extends KeyboardEvent {
  target: HTMLInputElement & { open: boolean };
  currentTarget: HTMLElement;
  detail: any; // what a CustomEvent brings
}
interface FormEvent extends Event {
  target: HTMLFormElement;
}

/** What the web UI uses of highlight.js. */
interface Highlighter {
  getLanguage(name: string): object | undefined;
  registerLanguage(name: string, grammar: object): void;
  highlight(text: string, options: { language: string; ignoreIllegals: boolean }): { value: string };
}

declare var early: { path: string; answer: Promise<Response> } | undefined;
declare var DOMPurify: typeof import("dompurify");
declare var katex: { __renderToDomTree(tex: string, options: object): FormulaNode } | undefined;
type Plot = import("uplot"); // it also declares the global uPlot
