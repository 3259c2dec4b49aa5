"""A server elsewhere that answers as a test says, in threads of the test's own process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any

Answer = tuple[int, Mapping[str, str], Any]
"""Status, headers, and a body: bytes, pieces sent in chunks, or what is sent as JSON."""


class Scripted:
    """Answers each path as `routes` say: by an answer, or by a function of the request's body.

    A function that returns None closes the connection instead. `asked` are the paths and bodies of
    all requests. Use it as a context manager.
    """

    def __init__(self, routes: Mapping[str, Answer | Callable[[Any], Answer | None]]) -> None:
        self.routes = dict(routes)
        self.asked: list[tuple[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.002,))

    @property
    def sent(self) -> list[Any]:
        """The bodies of all requests that have one; servers ask for lists at any time."""
        return [body for _, body in self.asked if body is not None]

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        here = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.answer(json.loads(raw) if raw else None)

            def answer(self, body: Any) -> None:
                here.asked.append((self.path, body))
                found = here.routes.get(self.path, (404, {}, {"error": "no such path"}))
                answer = found(body) if callable(found) else found
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, value = answer
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name, text)
                if isinstance(value, Iterable) and not isinstance(value, bytes | str | dict):
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for piece in chain(value, (b"",)):
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                        self.wfile.flush()
                    return
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler


def list_models(*names: str, owner: str = "somebody") -> Answer:
    """Return the answer of `/v1/models`."""
    cards = [{"id": name, "object": "model", "created": 0, "owned_by": owner} for name in names]
    return 200, {}, {"object": "list", "data": cards}
