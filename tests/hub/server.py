"""The two servers: the hub and, at another origin, its CDN.

Answers were taken from huggingface_hub's and llama.cpp's client code and from known behavior. Not
here: Xet, uploads, datasets.

See docs/reference/hub.md#hub-api.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.hub.faults import Fault, FaultHook, Logged
from tests.hub.repos import Content, HubFile, HubRepo


class StandInHub:
    """Use as a context manager; `url` is what HF_ENDPOINT would be.

    `fault(method, path, headers, server)` may return what shall go wrong. `tokens` maps a token
    to the gated or private repositories that it may read. `page` is the length of list pages.
    """

    def __init__(self, *, port: int = 0, page: int = 1000) -> None:
        self.repos: dict[str, HubRepo] = {}
        self.renamed: dict[str, str] = {}  # old id → new one
        self.tokens: dict[str, set[str]] = {}
        self.page = page
        self.log: list[Logged] = []
        self.fault: FaultHook | None = None
        self.signature = "first"  # an address with an older one is refused, when `expire` is used
        self.closing = threading.Event()
        self._running = 0
        self._idle = threading.Condition()
        self._hub = _Server(("127.0.0.1", port), _Hub, self)
        self._cdn = _Server(("127.0.0.1", 0), _Cdn, self)
        self.url = f"http://127.0.0.1:{self._hub.server_port}"
        self.cdn_url = f"http://127.0.0.1:{self._cdn.server_port}"

    def __enter__(self) -> StandInHub:
        for server in (self._hub, self._cdn):
            threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for server in (self._hub, self._cdn):
            server.shutdown()
            server.hang_up()
            server.server_close()

    def add_repo(
        self, repo_id: str, files: Mapping[str, Content] | Path | None = None, **values: Any
    ) -> HubRepo:
        """Add a repository; `files` is a mapping, or a folder that is read in place."""
        repo = HubRepo(id=repo_id, **values)
        self.repos[repo_id] = repo
        if isinstance(files, Path):
            found = sorted(p for p in files.rglob("*") if p.is_file())
            files = {p.relative_to(files).as_posix(): p for p in found}
        repo.commit(files or {})
        return repo

    def commit(self, repo_id: str, files: Mapping[str, Content], branch: str = "main") -> str:
        """Publish a new revision; return its commit."""
        return self.repos[repo_id].commit(files, branch)

    def expire(self) -> None:
        """Let all signed addresses given so far expire."""
        self.signature += "x"

    def count(self, change: int) -> None:
        """Count the requests that run; for the handlers."""
        with self._idle:
            self._running += change
            self._idle.notify_all()

    def settle(self, timeout_s: float = 60.0) -> None:
        """Wait until no request runs, so that the log is complete."""
        with self._idle:
            assert self._idle.wait_for(lambda: self._running == 0, timeout_s)

    def sent(self, server: str, method: str = "GET") -> int:
        """Return how many body bytes a server sent, once no request runs."""
        self.settle()
        return sum(e.sent_bytes for e in self.log if e.server == server and e.method == method)

    def requests(self, server: str, method: str | None = None, part: str = "") -> list[Logged]:
        """Return the logged requests of a server whose path contains `part`."""
        return [
            entry
            for entry in list(self.log)
            if entry.server == server and method in (None, entry.method) and part in entry.path
        ]

    def blob(self, sha256: str) -> HubFile | None:
        for repo in self.repos.values():
            for files in repo.snapshots.values():
                for file in files.values():
                    if file.lfs and file.sha256 == sha256:
                        return file
        return None


class _Server(ThreadingHTTPServer):
    # joined by server_close, after hang_up has woken the handlers
    daemon_threads = False
    block_on_close = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[_Handler], hub: StandInHub) -> None:
        self.hub = hub
        self.open: set[socket.socket] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for connection in list(self.open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that leave are part of the tests


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    name = ""
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def _serve(self) -> None:
        self.hub = self.server.hub
        self.hub.count(1)
        self.status, self.sent = 0, 0
        try:
            self._serve_logged()
        finally:
            self.hub.count(-1)

    def _serve_logged(self) -> None:
        parts = urlsplit(self.path)
        self.route, self.query = unquote(parts.path), parse_qs(parts.query)
        hook = self.hub.fault
        found = (
            hook(self.command, self.path, dict(self.headers.items()), self.name) if hook else None
        )
        self.fault = found or Fault()
        try:
            if self.fault.status is not None:
                self.answer(self.fault.status, {"error": "fault"}, self.fault.headers)
            else:
                self.handle_route()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.hub.log.append(
                Logged(
                    server=self.name,
                    method=self.command,
                    path=self.path,
                    headers={k.lower(): v for k, v in self.headers.items()},
                    status=self.status,
                    sent_bytes=self.sent,
                )
            )

    def handle_route(self) -> None:
        raise NotImplementedError

    def head(self, status: int, headers: Mapping[str, str], length: int) -> None:
        self.status = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def answer(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        own = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
        if status == 200:  # as the hub's API does: a weak one, of the body
            own["ETag"] = f'W/"{len(body):x}-{hashlib.sha1(body).hexdigest()}"'
            if self.headers.get("if-none-match") == own["ETag"]:
                self.head(304, own, 0)
                return
        self.head(status, own, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)
            self.sent += len(body)

    def send_file(self, file: HubFile, headers: Mapping[str, str]) -> None:
        """Send a file or the asked range of it, with what the fault does to it."""
        start, end, status = 0, file.size, 200
        asked = self.headers.get("range")
        own = {"ETag": f'"{file.etag}"', "Accept-Ranges": "bytes", **headers}
        if asked and not self.fault.ignore_range:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first)
            end = min(int(last) + 1, file.size) if last else file.size
            if start >= file.size or end <= start:
                self.head(416, {"Content-Range": f"bytes */{file.size}"}, 0)
                return
            status = 206
            start, end = start + self.fault.shift, min(end + self.fault.shift, file.size)
            own["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
        self.head(status, own, end - start)
        if self.command != "HEAD":
            self.send_body(file.read(start, end), start)

    def send_body(self, chunks: Iterable[bytes], offset: int) -> None:
        fault = self.fault
        limits = [
            n for n in (fault.cut_after, fault.reset_after, fault.stall_after) if n is not None
        ]
        step = 16384 if limits or fault.bytes_per_s else None
        if fault.bytes_per_s:  # slow is not silent
            step = min(16384, max(1, int(fault.bytes_per_s / 20)))
        for chunk in chunks:
            if fault.corrupt_at is not None and offset <= fault.corrupt_at < offset + len(chunk):
                at = fault.corrupt_at - offset
                chunk = chunk[:at] + bytes([chunk[at] ^ 0xFF]) + chunk[at + 1 :]
            offset += len(chunk)
            for begin in range(0, len(chunk), step or len(chunk)):
                piece = chunk[begin : begin + (step or len(chunk))]
                if limits and self.sent + len(piece) > limits[0]:
                    self._send(piece[: limits[0] - self.sent])
                    self._break()
                    return
                self._send(piece)

    def _send(self, piece: bytes) -> None:
        if self.fault.bytes_per_s and self.hub.closing.wait(len(piece) / self.fault.bytes_per_s):
            raise ConnectionResetError
        self.wfile.write(piece)
        self.sent += len(piece)

    def _break(self) -> None:
        self.close_connection = True
        if self.fault.stall_after is not None:
            self._wait_for_the_client()
        if self.fault.reset_after is not None:
            # a close with data unsent and no lingering is an RST
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()

    def _wait_for_the_client(self) -> None:
        self.connection.settimeout(0.05)
        while not self.hub.closing.is_set():
            try:
                if not self.connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return


class _Cdn(_Handler):
    name = "cdn"

    def handle_route(self) -> None:
        file = self.hub.blob(self.route.removeprefix("/repos/"))
        if file is None:
            self.answer(404, {"error": "no such blob"})
        elif self.query.get("X-Amz-Signature") != [self.hub.signature]:
            self.answer(403, {"error": "Request has expired"})
        else:
            name = quote(file.name.rsplit("/", 1)[-1])
            disposition = f"inline; filename*=UTF-8''{name}; filename=\"{name}\";"
            self.send_file(file, {"Content-Disposition": disposition})


class _Hub(_Handler):
    name = "hub"

    @property
    def token(self) -> str | None:
        value = self.headers.get("authorization", "")
        return value.removeprefix("Bearer ") or None

    def handle_route(self) -> None:
        if self.token is not None and self.token not in self.hub.tokens:
            message = "Invalid credentials in Authorization header"
            self.answer(401, {"error": message}, {"X-Error-Message": message})
        elif self.route == "/api/whoami-v2":
            status, value = (
                (200, {"name": "me"}) if self.token else (401, {"error": "Unauthorized"})
            )
            self.answer(status, value)
        elif self.route == "/api/models":
            self._list()
        elif self.route.startswith("/api/models/"):
            self._api()
        elif self.route.startswith("/api/resolve-cache/models/"):
            org, name, commit, path = self.route.removeprefix("/api/resolve-cache/models/").split(
                "/", 3
            )
            self._resolve(f"{org}/{name}", commit, path, cached=True)
        elif "/resolve/" in self.route:
            repo_id, _, rest = self.route[1:].partition("/resolve/")
            revision, _, path = rest.partition("/")
            self._resolve(repo_id, revision, path)
        else:
            self.answer(404, {"error": "Not Found"})

    def _fail(self, status: int, code: str, message: str, **headers: str) -> None:
        own = {"X-Error-Code": code, "X-Error-Message": message}
        own |= {key.replace("_", "-"): value for key, value in headers.items()}
        self.answer(status, {"error": message}, own)

    def _repo(self, repo_id: str) -> HubRepo | None:
        """Return a repository, or answer: redirected to its own spelling, or not found."""
        repo = self.hub.repos.get(repo_id)
        may = repo is not None and (
            not repo.private or repo_id in self.hub.tokens.get(self.token or "", ())
        )
        if repo is not None and may and repo.disabled and not self.route.startswith("/api/"):
            message = "Access to this resource is disabled."
            self.answer(403, {"error": message}, {"X-Error-Message": message})
            return None
        if repo is not None and may:
            return repo
        for own in [self.hub.renamed.get(repo_id), *self.hub.repos]:
            if own is None or own == repo_id:
                continue
            if own == self.hub.renamed.get(repo_id) or own.lower() == repo_id.lower():
                place = self.path.replace(repo_id, own, 1)
                self.answer(307, {"error": "moved"}, {"Location": place})
                return None
        # the hub does not tell a private repository from a missing one
        status = 404 if self.token else 401
        self._fail(status, "RepoNotFound", "Repository not found")
        return None

    def _may_fetch(self, repo: HubRepo) -> bool:
        if not repo.gated or repo.id in self.hub.tokens.get(self.token or "", ()):
            return True
        message = f"Access to model {repo.id} is restricted."
        self._fail(403 if self.token else 401, "GatedRepo", message)
        return False

    def _api(self) -> None:
        # the slashes of a revision are quoted
        raw = urlsplit(self.path).path.removeprefix("/api/models/")
        parts = [unquote(part) for part in raw.split("/")]
        repo = self._repo("/".join(parts[:2]))
        if repo is None:
            return
        verb, revision = (
            parts[2] if len(parts) > 2 else "",
            parts[3] if len(parts) > 3 else "main",
        )
        commit = repo.resolve(revision)
        if commit is None:
            self._fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        match verb:
            case "" | "revision":
                blobs = self.query.get("blobs", ["false"])[0].lower() == "true"
                self.answer(200, repo.info(commit, blobs, self.query.get("expand", [])))
            case "tree":
                recursive = self.query.get("recursive", ["false"])[0].lower() == "true"
                self._page(repo.tree(commit, "/".join(parts[4:]), recursive))
            case "auth-check":
                if self._may_fetch(repo):
                    self.answer(200, {})
            case _:
                self.answer(404, {"error": "Not Found"})

    def _list(self) -> None:
        allowed = self.hub.tokens.get(self.token or "", set())
        repos = [
            repo
            for repo in self.hub.repos.values()
            if repo.matches(self.query) and (not repo.private or repo.id in allowed)
        ]
        repos.sort(key=lambda repo: -repo.downloads)
        expand = self.query.get("expand", [])
        full = bool(expand) or "full" in self.query
        self._page(
            [
                repo.info(repo.refs["main"], False, expand) if full else repo.listed()
                for repo in repos
            ]
        )

    def _page(self, rows: list[dict[str, Any]]) -> None:
        begin = int(self.query.get("cursor", ["0"])[0])
        limit = min(int(self.query.get("limit", [self.hub.page])[0]), self.hub.page)
        headers = {}
        if begin + limit < len(rows):
            kept = "&".join(
                f"{key}={quote(value)}"
                for key, values in self.query.items()
                for value in values
                if key != "cursor"
            )
            address = f"{self.hub.url}{quote(self.route)}?{kept}&cursor={begin + limit}"
            headers["Link"] = f'<{address}>; rel="next"'
        self.answer(200, rows[begin : begin + limit], headers)

    def _resolve(self, repo_id: str, revision: str, path: str, cached: bool = False) -> None:
        repo = self._repo(repo_id)
        if repo is None or not self._may_fetch(repo):
            return
        commit = repo.resolve(revision)
        if commit is None:
            self._fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        file = repo.snapshots[commit].get(path)
        if file is None:
            self._fail(404, "EntryNotFound", "Entry not found", X_Repo_Commit=commit)
            return
        headers = {
            "X-Repo-Commit": commit,
            "X-Linked-Size": str(file.size),
            "X-Linked-Etag": f'"{file.etag}"',
            "Accept-Ranges": "bytes",
        }
        if cached:
            self.send_file(file, {"X-Repo-Commit": commit})
        elif file.lfs:
            place = f"{self.hub.cdn_url}/repos/{file.sha256}?X-Amz-Signature={self.hub.signature}"
            self.answer(302, {"error": "moved"}, {**headers, "Location": place})
        else:
            place = f"/api/resolve-cache/models/{repo.id}/{commit}/{quote(path)}"
            self.answer(307, {"error": "moved"}, {**headers, "Location": place})
