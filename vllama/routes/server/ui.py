"""The page under `/ui/`: the static files of `vllama/ui`, with headers that allow nothing else.

The files need no key, because they are the same for everybody; what the page asks does.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from vllama.net.http.request import Request
from vllama.routes.route import Route, RouteKind

if TYPE_CHECKING:
    from vllama.routes.context import Starting

PREFIX = "/ui/"
FOLDER = Path(__file__).parents[2] / "ui"
INDEX = "index.html"
REFUSED = "refused.html"
TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".webmanifest": b"application/manifest+json",
    ".woff2": b"font/woff2",
}
"""The files that are served; others in the folder are not."""
HEADERS = {
    # Answers of models are shown as Markdown: nothing in them may run, or tell another server.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "font-src 'self'; img-src 'self' data: blob:; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


VERSIONED = re.compile(r"(v[0-9a-f]{12})/(.+)")
LOCAL = re.compile(r'\b(href|src)="(?!#)([^":]+)(?<!\.html)"')
ENTRY = re.compile(r'src="v[0-9a-f]{12}/([^"]+)" type="module"')
IMPORT = re.compile(r'(?:\bfrom|^import) "(\.[^"]+\.js)"', re.MULTILINE)


class UiFile(Struct, frozen=True):
    """A file as it is sent: plain, or compressed if the client takes that."""

    content_type: bytes
    plain: bytes
    compressed: bytes
    etag: str


async def get_file(starting: Starting, request: Request) -> None:
    """Send a file of the page, or 304 if the browser has it already."""
    version = compute_version()
    asked, name = split_version(request.path.removeprefix(PREFIX))
    path = list_files().get(name or INDEX) if starting.guards.ui else None
    if path is None:
        request.text(404, "404 page not found")
        return
    status = 200
    if path.suffix == ".html" and starting.guards.is_stranger(
        request, keyed=starting.keys.is_required
    ):
        status, path = 403, FOLDER / REFUSED  # its scripts would be refused, without a word
    connect = " ".join(("connect-src 'self'", *starting.guards.mcp_origins))
    asset = read_asset(path, version, connect)
    headers = {
        **HEADERS,
        "content-security-policy": f"{HEADERS['content-security-policy']}; {connect}",
        # HTML is kept, but asked about: a new version is seen at once, because it names all others
        "cache-control": "public, max-age=31536000, immutable" if asked == version else "no-cache",
        "etag": asset.etag,
        "vary": "Accept-Encoding",
    }
    if asset.etag in request.header(b"if-none-match"):
        request.respond(304, b"", b"", headers)
        return
    body = asset.plain
    if len(asset.compressed) < len(body) and "gzip" in request.header(b"accept-encoding"):
        body = asset.compressed
        headers["content-encoding"] = "gzip"
    request.respond(status, body, asset.content_type, headers)


async def redirect(starting: Starting, request: Request) -> None:
    """Send a browser to the page, where relative addresses are right; `/docs` is a file of it."""
    if starting.guards.ui:
        place = "ui/docs.html" if request.path == "/docs" else "ui/"
        request.respond(307, b"", b"", {"location": place})
    else:
        request.text(404, "404 page not found")


@lru_cache(maxsize=1)
def list_files() -> dict[str, Path]:
    """Return the files of the page by their paths below `/ui/`."""
    return {
        path.relative_to(FOLDER).as_posix(): path
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES and path.is_file()
    }


def compute_version() -> str:
    """Return the fingerprint of the current files, which stands in their addresses."""
    states = [(name, path.stat()) for name, path in list_files().items()]
    seen = repr([(name, state.st_mtime_ns, state.st_size) for name, state in states])
    return "v" + hashlib.sha256(seen.encode()).hexdigest()[:12]


def split_version(name: str) -> tuple[str, str]:
    """Return the version in an address, empty without one, and the path of the file."""
    found = VERSIONED.fullmatch(name)
    return (found[1], found[2]) if found else ("", name)


@lru_cache(maxsize=256)
def read_asset(path: Path, version: str, connect: str) -> UiFile:
    """Read a file of a version of the page; browsers keep its headers as long as its ETag."""
    plain = path.read_bytes()
    if path.suffix == ".html":
        plain = add_versions(plain.decode(), version).encode()
    return UiFile(
        content_type=TYPES[path.suffix],
        plain=plain,
        compressed=gzip.compress(plain, mtime=0),
        # weak: the compressed body has other bytes, but the same meaning
        etag=f'W/"{hashlib.sha256(plain + connect.encode()).hexdigest()[:20]}"',
    )


def add_versions(page: str, version: str) -> str:
    """Put the version into the addresses of a page's files, and announce the modules it will need.

    Without that a browser would learn of a module only when it has read the one that imports it.
    """
    page = LOCAL.sub(rf'\1="{version}/\2"', page)
    modules = sorted({name for entry in ENTRY.findall(page) for name in find_modules(entry)})
    links = "".join(f'<link rel="modulepreload" href="{version}/{name}">\n' for name in modules)
    before = "</template>" if "</template>" in page else "</head>"
    return page.replace(before, links + before)


def find_modules(name: str, seen: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the files that a module imports, and those that these import."""
    path = list_files()[name]
    for address in IMPORT.findall(path.read_text("utf-8")):
        found = (path.parent / address).resolve().relative_to(FOLDER.resolve()).as_posix()
        if found not in seen:
            seen |= find_modules(found, seen | {found})
    return seen


_page = partial(Route, kind=RouteKind.OPEN, keyless=True, described=False)
ROUTES = (
    _page("GET HEAD /ui /docs", redirect, starting=redirect),
    _page(f"GET HEAD {PREFIX} {PREFIX}{{file}}", get_file, starting=get_file),
)
