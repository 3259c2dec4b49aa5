// STUB of the seam, until chat-data brings the real one
import { changes } from "../live/state.js";
import { readObjects, send } from "../server.js";
const tree = new Map();
const fresh = (model) => ({ id: "", title: "New conversation", models: [model ?? localStorage.getItem("last-model") ?? ""], system: "", think: "", tools: "", options: {}, head: null });
export const session = { list: [], conversation: fresh(), path: [], files: new Map(), trouble: null };
const running = new Map(); const data = new Map(); let presets = [];
const uid = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
const announce = () => { show(); changes.dispatchEvent(new Event("chat")); };
function show() {
  const c = session.conversation; const d = data.get(c.id);
  session.path = [];
  if (!d || !c.head) return;
  let turn = d.turns.find((t) => t.id === c.head.turn), answers = c.head.answers;
  while (turn) {
    const t = turn;
    session.path.unshift({ turn: t, answers: answers.map((id) => d.answers.find((a) => a.id === id)).filter(Boolean),
      siblings: d.turns.filter((o) => o.after.join() === t.after.join()).map((o) => o.id),
      versions: answers.map((id, pane) => d.answers.filter((a) => a.turn === t.id && a.pane === pane).map((a) => a.id)) });
    answers = t.after; turn = d.turns.find((o) => o.id === d.answers.find((a) => a.id === answers[0])?.turn);
  }
}
export async function openConversation(id, { model } = {}) {
  session.conversation = session.list.find((c) => c.id === id) ?? fresh(model);
  announce();
}
export async function say({ text, files }) {
  const c = session.conversation;
  if (!c.id) { c.id = uid(); c.title = text.slice(0, 60); data.set(c.id, { turns: [], answers: [] }); session.list = [c, ...session.list]; }
  c.updated = Date.now();
  return add(text, files, c.head?.answers ?? []);
}
function add(text, files, after) {
  const c = session.conversation, d = data.get(c.id);
  const stored = files.map((f) => (typeof f === "string" ? f : (() => { const id = uid(); session.files.set(id, { ...f, id }); return id; })()));
  const turn = { id: uid(), after, at: Date.now(), text, files: stored };
  d.turns.push(turn);
  c.head = { turn: turn.id, answers: [] };
  return Promise.all(c.models.map((m, pane) => write(turn, pane, m)));
}
async function write(turn, pane, model, old) {
  const c = session.conversation, d = data.get(c.id);
  const a = old ?? { id: uid(), turn: turn.id, pane, model, state: "writing", error: "", messages: [] };
  if (!old) { d.answers.push(a); c.head.turn = turn.id; c.head.answers[pane] = a.id; }
  a.state = "writing";
  const abort = new AbortController(); running.set(a.id, abort);
  show();
  const m = { role: "assistant", content: "", thinking: "", tool_calls: [], stats: {} };
  const msgs = [];
  if (c.system) msgs.push({ role: "system", content: c.system });
  for (const p of session.path) { msgs.push({ role: "user", content: p.turn.text }); const x = p.answers[pane]; if (x) for (const y of x.messages) if (y.content || y.tool_calls?.length) msgs.push({ role: y.role, content: y.content, tool_calls: y.tool_calls, tool_name: y.tool_name }); if (p.turn === turn) break; }
  a.messages.push(m); announce();
  const t0 = performance.now();
  try {
    const body = { model, messages: msgs, options: c.options };
    if (c.tools) body.tools = JSON.parse(c.tools);
    if (c.think) body.think = c.think === "yes" ? true : c.think === "no" ? false : c.think;
    const r = await send("api/chat", { method: "POST", body, signal: abort.signal });
    for await (const part of readObjects(r)) {
      m.content += part.message?.content ?? ""; m.thinking += part.message?.thinking ?? ""; m.tool_calls.push(...(part.message?.tool_calls ?? []));
      m.stats.firstTokenS ??= (performance.now() - t0) / 1000;
      if (part.done) Object.assign(m.stats, { done: true, reason: part.done_reason, promptTokens: part.prompt_eval_count, tokens: part.eval_count, tokensPerS: part.eval_count / (part.eval_duration / 1e9) });
      announce();
    }
    a.state = "done";
  } catch (e) { a.state = abort.signal.aborted ? "stopped" : "failed"; a.error = abort.signal.aborted ? "" : e.message; }
  running.delete(a.id);
  d.answers = d.answers.map((o) => (o === a ? { ...a } : o));
  announce();
}
const cur = () => data.get(session.conversation.id);
export async function edit(id, { text, files }) { return add(text, files, cur().turns.find((t) => t.id === id).after); }
export async function regenerate(id) { const a = cur().answers.find((o) => o.id === id); const t = cur().turns.find((o) => o.id === a.turn); if (session.conversation.head.turn !== t.id) { const p = session.path.find((p) => p.turn === t); session.conversation.head = { turn: t.id, answers: p.answers.map((o) => o.id) }; } return write(t, a.pane, session.conversation.models[a.pane]); }
export async function continueAnswer(id) { const a = cur().answers.find((o) => o.id === id); return write(cur().turns.find((o) => o.id === a.turn), a.pane, a.model, a); }
export async function answerTools(id, results) { const a = cur().answers.find((o) => o.id === id); a.messages.push(...results.map(({ name, content }) => ({ role: "tool", tool_name: name, content }))); return write(cur().turns.find((o) => o.id === a.turn), a.pane, a.model, a); }
export async function stop() { for (const r of running.values()) r.abort(); }
export async function showTurn(id) { let t = cur().turns.find((o) => o.id === id); for (;;) { const as = cur().answers.filter((a) => a.turn === t.id); const last = new Map(); as.forEach((a) => last.set(a.pane, a.id)); const ans = [...last.values()]; const n = cur().turns.filter((o) => o.after.join() === ans.join()).at(-1); if (!n) { session.conversation.head = { turn: t.id, answers: ans }; break; } t = n; } announce(); }
export async function showAnswer(id) { const a = cur().answers.find((o) => o.id === id); const p = session.path.find((p) => p.turn.id === a.turn); const ans = p.answers.map((o) => o.id); ans[a.pane] = id; session.conversation.head = { turn: a.turn, answers: ans }; announce(); }
export async function change(f) { Object.assign(session.conversation, f); announce(); }
export async function rename(id, title) { session.list = session.list.map((c) => (c.id === id ? Object.assign(c, { title }) : c)); announce(); }
export async function remove(ids) { session.list = session.list.filter((c) => !ids.includes(c.id)); if (ids.includes(session.conversation.id)) session.conversation = fresh(); announce(); }
export async function find(words) { const out = []; for (const [id, d] of data) { const t = d.turns.find((t) => t.text.toLowerCase().includes(words.toLowerCase())); if (t) out.push({ conversation: id, turn: t.id }); } return out; }
export async function listPresets() { return presets; }
export async function savePreset(p) { const x = { ...p, id: uid() }; presets = [...presets, x]; announce(); return x; }
export async function removePreset(id) { presets = presets.filter((p) => p.id !== id); announce(); }
export const isWriting = (id) => (running.has(id) ? "here" : "");
export const isFailure = (a) => Boolean(a.error) && !a.messages.some((m) => m.content);
