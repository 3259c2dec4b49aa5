"""A small HTTP server on this machine: pages to fetch, and a SearXNG as it answers in JSON."""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Site(ThreadingHTTPServer):
    """`pages` maps paths to (status, headers, body); `searches` are the queries that came."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        """With a `context` it speaks https."""
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.searches: list[dict[str, list[str]]] = []
        self.hosts: list[str | None] = []
        self.released = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)
        self._scheme = "http"
        if context is not None:
            self._scheme = "https"
            self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"{self._scheme}://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that leave in the midst of a handshake."""


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.server.hosts.append(self.headers["Host"])
        if parts.path == "/search":
            self._search(parse_qs(parts.query))
        elif parts.path == "/drips":
            self._drip()
        else:
            self._send(*self.server.pages.get(parts.path, (404, {}, b"")))

    def _search(self, query: dict[str, list[str]]) -> None:
        """Answer as SearXNG does: with fields of its own, and 403 where JSON is not enabled."""
        self.server.searches.append(query)
        if query.get("format") != ["json"] or query["q"] == ["forbidden"]:
            self._send(403, {}, b"<!doctype html><title>403 Forbidden</title>")
            return
        results = [
            {
                "url": f"https://example.org/{number}", "title": f"Result {number}",
                "content": f"about {query['q'][0]}", "engine": "bing", "score": 1.0,
                "publishedDate": None, "category": "general",
            }
            for number in range(20)
        ]  # fmt: skip
        lists = ("answers", "infoboxes", "suggestions", "unresponsive_engines")
        answer = {"query": query["q"][0], "number_of_results": 0, "results": results}
        answer |= {name: [] for name in lists}
        self._send(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def _drip(self) -> None:
        """Begin an answer and never end it, until the test is over or the client has left."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>slow")
        self.server.released.wait()
        self.close_connection = True

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def run_site(context: ssl.SSLContext | None = None):
    """Yield a running site."""
    site = Site(context)
    thread = threading.Thread(target=site.serve_forever, args=(0.002,))
    thread.start()
    try:
        yield site
    finally:
        site.released.set()
        site.shutdown()
        thread.join()
        site.server_close()
