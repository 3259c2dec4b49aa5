"""The page under `/ui/`: the static files of `vllama/ui`, with headers that allow nothing else.

The files need no key, because they are the same for everybody; what the page asks does.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from vllama.http.request import Request

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

PREFIX = "/ui/"
FOLDER = Path(__file__).parent.parent / "ui"
INDEX = "index.html"
TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}
"""The files that are served; others in the folder are not."""
HEADERS = {
    # Answers of models are shown as Markdown: nothing in them may run, or tell another server.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Asset(Struct, frozen=True):
    """A file as it is sent: plain, or compressed if the client takes that."""

    content_type: bytes
    plain: bytes
    compressed: bytes
    etag: str


async def get_file(gateway: Gateway, request: Request) -> None:
    """Send a file of the page, or 304 if the browser has it already."""
    path = find_file(request.path.removeprefix(PREFIX)) if gateway.guards.ui else None
    if path is None:
        request.text(404, "404 page not found")
        return
    asset = read_asset(path, path.stat().st_mtime_ns)
    headers = {
        **HEADERS,
        "cache-control": "no-cache",  # kept, but asked about: a new version is seen at once
        "etag": asset.etag,
        "vary": "Accept-Encoding",
    }
    if asset.etag in request.header(b"if-none-match"):
        request.respond(304, b"", b"", headers)
        return
    body = asset.plain
    if "gzip" in request.header(b"accept-encoding"):
        body = asset.compressed
        headers["content-encoding"] = "gzip"
    request.respond(200, body, asset.content_type, headers)


async def redirect(gateway: Gateway, request: Request) -> None:
    """Send a browser from `/ui` to the page, where relative addresses are right."""
    if gateway.guards.ui:
        request.respond(307, b"", b"", {"location": "ui/"})
    else:
        request.text(404, "404 page not found")


async def redirect_to_reference(gateway: Gateway, request: Request) -> None:
    """Send a browser from `/docs` to the reference of the API, a file of the page."""
    if gateway.guards.ui:
        request.respond(307, b"", b"", {"location": "ui/docs.html"})
    else:
        request.text(404, "404 page not found")


def find_file(name: str) -> Path | None:
    """Return a file of the page by its path below `/ui/`, None if there is none."""
    return list_files().get(name or INDEX)


@lru_cache(maxsize=1)
def list_files() -> dict[str, Path]:
    """Return the files of the page by their paths below `/ui/`."""
    return {
        path.relative_to(FOLDER).as_posix(): path
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES and path.is_file()
    }


@lru_cache(maxsize=256)
def read_asset(path: Path, modified_ns: int) -> Asset:
    """Read a file; `modified_ns` makes a change of the file another call."""
    plain = path.read_bytes()
    return Asset(
        content_type=TYPES[path.suffix],
        plain=plain,
        compressed=gzip.compress(plain, mtime=0),
        # weak: the compressed body has other bytes, but the same meaning
        etag=f'W/"{hashlib.sha256(plain).hexdigest()[:20]}"',
    )
