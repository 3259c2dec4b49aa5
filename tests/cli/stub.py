"""A stand-in for the server, on a real socket: answers the Ollama API from a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Handler = Callable[[Body, "Reply"], None]


class Reply:
    """One answer: `send` a status and lines, or wait for the client to leave."""

    def __init__(self, http: BaseHTTPRequestHandler) -> None:
        self._http = http
        self._begun = False

    def begin(self, status: int = 200, kind: str = "application/x-ndjson") -> None:
        self._begun = True
        self._http.send_response(status)
        self._http.send_header("Content-Type", kind)
        self._http.send_header("Connection", "close")
        self._http.end_headers()

    def line(self, value: object) -> None:
        if not self._begun:
            self.begin()
        self.raw(json.dumps(value).encode() + b"\n")

    def raw(self, content: bytes) -> None:
        self._http.wfile.write(content)
        self._http.wfile.flush()

    def send(self, content: bytes, status: int = 200) -> None:
        """Send a whole answer."""
        self.begin(status, "application/json")
        self.raw(content)

    def error(self, status: int, text: str) -> None:
        self.send(json.dumps({"error": text}).encode(), status)

    def wait_for_leaving(self) -> None:
        """Return when the client has closed its end."""
        self._http.connection.settimeout(120)
        self._http.connection.recv(1)


class StubServer:
    """Routes by `METHOD path`; remembers every request."""

    def __init__(self) -> None:
        self.routes: dict[str, Handler] = {}
        self.requests: list[tuple[str, Body]] = []
        stub = self

        class Http(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                key = f"{self.command} {self.path}"
                if key.endswith("/api/version") and key not in stub.routes:
                    # every client begins with it
                    Reply(self).line({"version": "0.34.0"})
                    self.close_connection = True
                    return
                stub.requests.append((key, body))
                reply = Reply(self)
                handler = stub.routes.get(key)
                try:
                    if handler is None:
                        reply.begin(404, "text/plain")
                        reply.raw(b"404 page not found")
                    else:
                        handler(body, reply)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                self.close_connection = True

            do_GET = do_POST = do_DELETE = handle_any  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.002,))
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def on(self, key: str, *lines: object) -> None:
        """Answer a route with fixed lines."""

        def handler(body: Body, reply: Reply) -> None:
            reply.begin()
            for line in lines:
                reply.line(line)

        self.routes[key] = handler

    def fail(self, key: str, status: int, text: str) -> None:
        """Answer a route with an error."""
        self.routes[key] = lambda body, reply: reply.error(status, text)

    def bodies(self, key: str) -> list[Body]:
        return [body for name, body in self.requests if name == key]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def answer(*pieces: str, thinking: str = "", chat: bool = False, **last: object) -> Iterator[Body]:
    """Make the lines of a streamed answer."""
    if thinking:
        yield _part("", thinking, chat)
    for piece in pieces:
        yield _part(piece, "", chat)
    yield _part("", "", chat) | {"done": True, "done_reason": "stop"} | last


def _part(text: str, thinking: str, chat: bool) -> Body:
    part: Body = {"model": "m", "done": False}
    fields: Body = {"content" if chat else "response": text}
    if thinking:
        fields["thinking"] = thinking
    return part | ({"message": {"role": "assistant"} | fields} if chat else fields)
