"""A small HTTP server that answers an adapter's probe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from vllama.supervise.spec import HttpProbe


class ProbeServer(HTTPServer):
    """Answers the routes of `probe`; with a `key`, all but its `path` ask for that."""

    probe: HttpProbe
    key: str | None = None
    is_ready = True


class _Handler(BaseHTTPRequestHandler):
    server: ProbeServer

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer the probe."""
        server, probe = self.server, self.server.probe
        if self.path == probe.path:
            self._answer(min(probe.ready_statuses) if server.is_ready else 503)
        else:
            self._answer(200 if self.path == probe.verify_path and self._has_key() else 401)

    def do_POST(self) -> None:
        """Answer the first work."""
        self.rfile.read(int(self.headers["Content-Length"]))
        work = self.server.probe.first_work
        self._answer(200 if work and self.path == work.path and self._has_key() else 401)

    def _has_key(self) -> bool:
        key = self.server.key
        return key is None or self.headers["Authorization"] == f"Bearer {key}"

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serve_probes() -> Iterator[ProbeServer]:
    """Serve on a free port of loopback; set the server's `probe` before a request arrives."""
    with ProbeServer(("127.0.0.1", 0), _Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
