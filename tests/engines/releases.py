"""A stand-in for the releases of a project: GitHub's API for one repository, and its archives.

`archives` has the archives by release and name. `faults` are names of how it misbehaves.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROGRAM = "#!/bin/sh\necho 'version: 11434 (abcdef0)'\n"
LIMIT = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1700000000"}


def make_archive(files: Mapping[str, str], *, links: Mapping[str, str] | None = None) -> bytes:
    """Pack programs, and symbolic links, by their paths."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text.encode()), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
        for path, target in (links or {}).items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return out.getvalue()


def make_build(tag: str, text: str = PROGRAM) -> bytes:
    """Pack a build as the project does: a folder named after the release."""
    filling = "".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(4000))
    files = {f"llama-{tag}/llama-server": text, f"llama-{tag}/libllama.so.0": filling}
    return make_archive(files, links={f"llama-{tag}/libllama.so": "libllama.so.0"})


class Releases:
    """The server; use as a context manager. `asked` has the paths, with the ranges asked for."""

    def __init__(self, archives: dict[str, dict[str, bytes]]) -> None:
        self.archives = archives
        self.faults: set[str] = set()
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # clients leave in the midst of answers
        self.url = f"http://127.0.0.1:{self._server.server_port}/releases"

    def __enter__(self) -> Releases:
        serve = partial(self._server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def describe(self, tag: str) -> bytes:
        """Describe a release, as far as the faults let it."""
        if "garbage" in self.faults:
            return b"<html>a portal"
        assets = [
            {
                "name": name,
                "size": len(data) + ("larger" in self.faults),
                "digest": self._digest(data),
                "browser_download_url": f"../download/{tag}/{name}",
            }
            for name, data in self.archives[tag].items()
        ]
        named = "b1" if "other" in self.faults else tag
        return json.dumps({"tag_name": named, "assets": assets}).encode()

    def _digest(self, data: bytes) -> str | None:
        if "no digest" in self.faults:
            return None
        wrong = b"x" if "wrong digest" in self.faults else b""
        return f"sha256:{hashlib.sha256(data + wrong).hexdigest()}"

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        releases = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                releases.answer(self)

        return Handler

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        span = handler.headers.get("range", "")
        self.asked.append(f"{handler.path} {span}".strip())
        *_, kind, tag, name = ("", *handler.path.split("/"))
        if kind == "download":
            self._send_archive(handler, self.archives[tag][name], span)
        elif "limit" in self.faults:
            self._send(handler, 403, b"{}", LIMIT)
        elif "drip" in self.faults:
            self._drip(handler)
        elif name == "latest":
            self._send(handler, 200, self.describe(max(self.archives)))
        elif tag == "tags" and name in self.archives:
            self._send(handler, 200, self.describe(name))
        else:
            self._send(handler, 404, b'{"message": "Not Found"}')

    def _send_archive(self, handler: BaseHTTPRequestHandler, data: bytes, span: str) -> None:
        if "drip later" in self.faults:
            self._drip(handler)
            return
        if self.faults & {"gone", "busy once"}:
            self.faults.discard("busy once")
            self._send(handler, 503, b"")
            return
        if "damaged" in self.faults:
            data = data[:-100] + bytes(100)
        start = int(span.removeprefix("bytes=").removesuffix("-") or 0)
        if "no ranges" in self.faults:
            start = 0
        if "416" in self.faults and start:
            self._send(handler, 416, b"")
            return
        handler.send_response(206 if start else 200)
        handler.send_header("content-length", str(len(data) - start))
        if start:
            told = 0 if "another part" in self.faults else start
            self.faults.discard("another part")
            handler.send_header("content-range", f"bytes {told}-{len(data) - 1}/{len(data)}")
        handler.end_headers()
        end = len(data)
        if self.faults & {"cut", "cut once"}:
            self.faults.discard("cut once")
            end = start + (len(data) - start) // 2
        handler.wfile.write(data[start:end])
        if end < len(data):
            handler.close_connection = True

    @staticmethod
    def _drip(handler: BaseHTTPRequestHandler) -> None:
        """Send a byte now and then, until the client leaves."""
        handler.send_response(200)
        handler.send_header("content-length", "100000")
        handler.end_headers()
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b" ")
                time.sleep(0.02)

    @staticmethod
    def _send(
        handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str] = {}
    ) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
