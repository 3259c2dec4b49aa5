"""A reverse proxy that adds a path."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.server_process import LIMIT_S


@contextmanager
def add_prefix(port: int, prefix: str) -> Iterator[str]:
    """Yield the URL at which a server of this machine is found below `prefix`, and only there."""

    class Handler(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
            path = self.path.removeprefix(prefix)
            connection.request(self.command, path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_GET = do_POST = pass_on  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
