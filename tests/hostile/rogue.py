"""A server that answers what no honest registry or hub would; it counts what it could send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PIECE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer; the body may have no end. It ends with the connection."""

    body: Iterable[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Rogue:
    """What the server does: `answer` for a path; `asked` and `sent_bytes` are what came of it."""

    url: str
    answer: Callable[[str], Reply] = lambda path: Reply(status=404)
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    sent_bytes: int = 0

    @property
    def host(self) -> str:
        """`address:port`."""
        return urlsplit(self.url).netloc


def endless(piece: bytes = b" " * PIECE) -> Iterator[bytes]:
    """Yield for ever: whoever reads it has to stop by himself."""
    while True:
        yield piece


@contextmanager
def rogue() -> Iterator[Rogue]:
    """Run the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            told.asked.append((path, {k.lower(): v for k, v in self.headers.items()}))
            reply = told.answer(path)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            try:
                for piece in reply.body:
                    self.wfile.write(piece)
                    told.sent_bytes += len(piece)
            except OSError:  # the client has left, as it should
                self.close_connection = True

        do_HEAD = do_GET  # noqa: N815 - the library's name

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    told = Rogue(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
