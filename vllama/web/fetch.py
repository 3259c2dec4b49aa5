"""Fetches a page of the public internet, bounded in time and size, and never anything else."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from vllama.errors import BadRequest, UpstreamError
from vllama.web.page_text import Page, read_page
from vllama.web.public_address import resolve_public

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PAGE_BYTES = 2 * 1024 * 1024
MAX_REDIRECTS = 5
LIMIT_S = 20.0
CONNECT_S = 5.0
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_HEADERS = {
    "User-Agent": "vllama",
    "Accept": "text/html, text/plain, application/json;q=0.9, */*;q=0.1",
    "Accept-Encoding": "identity",
    "Connection": "close",
}

# those of pages; Python has others, some of which take very long
_CHARSETS = re.compile(
    r"(utf-?8|us-ascii|iso-8859-\d\d?|windows-125[0-8]|koi8-[ru]|gb2312|gbk|"
    r"gb18030|big5|euc-(jp|kr)|shift_jis)$"
)

Resolve = Callable[[str, int], str]
"""Returns the address of a host to connect to, or raises."""


def fetch_page(url: str, resolve: Resolve = resolve_public, limit_s: float = LIMIT_S) -> Page:
    """Return the text of the page at `url`; blocks for `limit_s` at most.

    Raises BadRequest for what may not be fetched, UpstreamError for what cannot be. Every redirect
    is checked like the first address. Proxies of the environment are not used, since only this
    machine can check where a name leads.
    """
    deadline_s = time.monotonic() + limit_s
    url = url.strip() if "://" in url else f"https://{url.strip()}"
    for _ in range(MAX_REDIRECTS + 1):
        status, headers, body = _get(url, resolve, deadline_s)
        if status in _REDIRECTS and "location" in headers:
            url = urljoin(url, headers["location"])
            continue
        if status != 200:
            raise UpstreamError(f"cannot fetch the page: '{url[:200]}' answers with {status}")
        return _read(url, headers.get("content-type", "text/html"), body)
    raise UpstreamError(f"cannot fetch the page: more than {MAX_REDIRECTS} redirects")


def _get(url: str, resolve: Resolve, deadline_s: float) -> tuple[int, Mapping[str, str], bytes]:
    """Ask one address and follow nothing; header names are in lower case."""
    parts, host, port = _split(url)
    address = resolve(host, port)
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    if query := quote(parts.query, safe="/%:@!$&'()*+,;=~?"):
        path += f"?{query}"
    connection = http.client.HTTPConnection(host, port)
    try:
        with _connect(address, port, deadline_s) as sock:
            connection.sock = sock
            if parts.scheme.lower() == "https":
                context = ssl.create_default_context()
                connection.sock = context.wrap_socket(sock, server_hostname=host)
            headers = {"Host": _write_host(parts, host, port), **_HEADERS}
            connection.request("GET", path, headers=headers)
            with connection.getresponse() as answer:
                body = answer.read(MAX_PAGE_BYTES + 1)
            if time.monotonic() >= deadline_s:
                raise TimeoutError  # what has come may look whole
    except (OSError, ValueError, http.client.HTTPException) as error:
        late = time.monotonic() >= deadline_s
        reason = "it takes too long" if late else str(error) or type(error).__name__
        raise UpstreamError(f"cannot fetch the page: {reason}") from None
    finally:
        connection.close()
    if len(body) > MAX_PAGE_BYTES:
        raise UpstreamError(f"cannot fetch the page: it has more than {MAX_PAGE_BYTES} bytes")
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def _split(url: str) -> tuple[SplitResult, str, int]:
    """Return a URL's parts, host and port. Raises BadRequest."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadRequest(f"cannot fetch the page: '{url[:200]}' is not a URL") from None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or not parts.hostname:
        raise BadRequest(f"cannot fetch the page: '{url[:200]}' is not an http or https URL")
    return parts, parts.hostname, port or _PORTS[scheme]


def _write_host(parts: SplitResult, host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host else host.encode("idna").decode()
    return name if port == _PORTS[parts.scheme.lower()] else f"{name}:{port}"


@contextmanager
def _connect(address: str, port: int, deadline_s: float) -> Iterator[socket.socket]:
    """Connect, and cut the connection at the deadline, however slowly its bytes come."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("it takes too long")
    with socket.create_connection((address, port), timeout=min(CONNECT_S, left_s)) as sock:
        sock.settimeout(None)
        # a descriptor of its own: TLS takes over the first one
        with sock.dup() as other:
            cutter = threading.Timer(deadline_s - time.monotonic(), _cut, (other,))
            cutter.daemon = True
            cutter.start()
            try:
                yield sock
            finally:
                cutter.cancel()
                cutter.join()


def _cut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _read(url: str, content_type: str, body: bytes) -> Page:
    kind, _, rest = content_type.lower().partition(";")
    charset = rest.partition("charset=")[2].partition(";")[0].strip(" \"'")
    text = body.decode(charset if _CHARSETS.match(charset) else "utf-8", errors="replace")
    kind = kind.strip()
    if kind in ("text/html", "application/xhtml+xml"):
        return read_page(text, url)
    if kind.startswith("text/") or kind.endswith(("json", "xml")):
        return Page(title="", content=text, links=[])
    raise UpstreamError(f"cannot read the page: its type is '{kind[:80]}', not text")
