"""An MCP server (streamable HTTP), and a model that calls its tools when it is told to."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EMPTY = {"type": "object", "properties": {}}
SCRIPT = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"


class McpServer(ThreadingHTTPServer):
    """Tools: `slow` waits for `released`, `fails` fails, `script` and `long` answer; with sessions.

    Its `/v1` is a model's: it answers "call NAME NAME" with calls of these tools, "loop NAME" with
    one each time, and a result of a tool with text. `cors` None: it allows no pages. `hangs`: it
    answers nothing before `released`.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *, cors: str | None = "*", token: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cors, self.token = cors, token
        self.descriptions = dict.fromkeys(("slow", "fails", "script", "long"), "A tool.")
        self.released = threading.Event()
        self.hangs = False
        self.calls: list[str] = []
        self.session = "s-1"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: McpServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, body: bytes = b"", kind: str = "application/json", **more: str):
        self.send_response(status)
        if self.server.cors and self.path == "/mcp":
            self.send_header("access-control-allow-origin", self.server.cors)
            self.send_header("access-control-allow-headers", "*, authorization")
            self.send_header("access-control-expose-headers", "mcp-session-id")
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_OPTIONS(self) -> None:
        self.reply(204)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.reply(200, json.dumps({"data": [{"id": "agent", "max_model_len": 4096}]}).encode())
        else:
            self.reply(405)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/chat/completions":
            self.say(body)
        elif self.path != "/mcp":
            self.reply(404)
        elif self.server.token and self.headers["authorization"] != f"Bearer {self.server.token}":
            self.reply(401)
        else:
            self.answer(body)

    def answer(self, body: dict) -> None:
        method, params = body["method"], body.get("params", {})
        known = self.server.session
        if self.server.hangs:
            self.server.released.wait(60)
        if method == "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            return self.send_json(body, result, mcp_session_id=known)
        assert self.headers["mcp-protocol-version"] == "2025-06-18"
        if self.headers["mcp-session-id"] != known:
            return self.reply(404)
        if method == "notifications/initialized":
            return self.reply(202)
        if method == "tools/list":  # in two pages
            all_tools = [
                {"name": name, "description": text, "inputSchema": EMPTY}
                for name, text in self.server.descriptions.items()
            ]
            if params.get("cursor") == "2":
                return self.send_json(body, {"tools": all_tools[2:]})
            return self.send_json(body, {"tools": all_tools[:2], "nextCursor": "2"})
        return self.call(body, params["name"])

    def call(self, body: dict, name: str) -> None:
        self.server.calls.append(name)
        if name == "slow":
            self.server.released.wait(60)
        texts = {"slow": "At last.", "fails": "No luck.", "script": SCRIPT, "long": "x" * 200_000}
        result = {"content": [{"type": "text", "text": texts[name]}], "isError": name == "fails"}
        if name == "script":
            return self.send_json(body, result)
        news = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}
        answer = {"jsonrpc": "2.0", "id": body["id"], "result": result}
        lines = "".join(
            f"event: message\r\ndata: {json.dumps(one)}\r\n\r\n" for one in (news, answer)
        )
        return self.reply(200, lines.encode(), "text/event-stream")

    def send_json(self, body: dict, result: dict, **more: str) -> None:
        answer = {"jsonrpc": "2.0", "id": body["id"], "result": result}
        self.reply(200, json.dumps(answer).encode(), **more)

    def say(self, body: dict) -> None:
        """Answer as a model."""
        last = body["messages"][-1]
        asked = next(m for m in reversed(body["messages"]) if m["role"] == "user")["content"]
        offered = [tool["function"]["name"] for tool in body.get("tools", ())]
        verb, _, name = asked.partition(" ")
        delta: dict = {"role": "assistant", "content": f"Offered: {' '.join(offered)}."}
        if last["role"] == "tool" and verb != "loop":
            delta["content"] = f"I read {len(last['content'])} letters: {last['content'][:40]}"
        elif verb in ("call", "loop"):
            delta["content"] = ""
            delta["tool_calls"] = [
                {
                    "index": index,
                    "id": f"call-{len(body['messages'])}-{index}",
                    "type": "function",
                    "function": {"name": one, "arguments": json.dumps({"city": "Paris"})},
                }
                for index, one in enumerate(name.split())
            ]
        end = "tool_calls" if "tool_calls" in delta else "stop"
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "agent"}
        usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
        if not body.get("stream"):
            choice = {"index": 0, "message": delta, "finish_reason": end}
            answer = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            return self.reply(200, json.dumps(answer).encode())
        chunks = [
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": end}]},
            {**head, "choices": [], "usage": usage},
        ]
        lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        return self.reply(200, lines.encode(), "text/event-stream")
