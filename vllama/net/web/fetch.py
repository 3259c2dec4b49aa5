"""What a model gets of the web: a page of the public internet, or the results of a SearXNG.

A page is bounded in time and size, and never anything else.
A client must not reach through the server what only the server can reach: this machine, its
network, the metadata service of a cloud (server-side request forgery).
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from threading import current_thread
from urllib.parse import SplitResult, quote, urlencode, urljoin, urlsplit

import msgspec
from urllib3 import HTTPConnectionPool, Timeout
from urllib3.exceptions import HTTPError

from vllama.base.errors import BadRequest, SourceError, UpstreamError, describe_connection_error
from vllama.base.threads import ended_after
from vllama.dialects.ollama.answer_types import SearchResult
from vllama.net.web.bodies import read_body
from vllama.net.web.connections import Connections, RequestFailed
from vllama.net.web.page_text import Document
from vllama.net.web.pools import Pool, SecurePool, in_use

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: IPAddress) -> bool:
    """Tell whether an address, and the IPv4 address that it may stand for, is a public one."""
    inner = find_embedded(address)
    if inner is not None:
        return is_public(inner)
    return address.is_global and not address.is_multicast


def find_embedded(address: IPAddress) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to (RFC 4291, 3056, 4380, 6052)."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]


def resolve_public(host: str, port: int) -> str:
    """Return an address of `host` to connect to. Raises BadRequest if any of them is not public.

    What was checked is connected to: a name that is asked again may have another answer.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UpstreamError(f"cannot fetch the page: host '{host[:80]}' is not known") from None
    addresses = [str(row[4][0]).partition("%")[0] for row in found]
    for address in addresses:
        if not is_public(ipaddress.ip_address(address)):
            raise BadRequest(f"cannot fetch the page: '{host[:80]}' is not on the public internet")
    return addresses[0]


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


def fetch_page(url: str, resolve: Resolve = resolve_public, limit_s: float = LIMIT_S) -> Document:
    """Return the page at `url`; blocks for `limit_s` at most.

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
    left_s = deadline_s - time.monotonic()
    # connected well before the deadline, at which there must be a socket to cut
    timeout = Timeout(connect=max(0.001, min(CONNECT_S, left_s / 2)), read=LIMIT_S)
    try:
        pool: HTTPConnectionPool = Pool(address, port, timeout=timeout)
        if parts.scheme.lower() == "https":  # whose certificate is of the name, not the address
            pool = SecurePool(address, port, timeout=timeout, server_hostname=_to_ascii(host))
        headers = {"Host": _write_host(parts, host, port), **_HEADERS}
        with closing(pool), ended_after(left_s, partial(in_use.shut_down, [current_thread()])):
            answer = pool.urlopen(
                "GET", path, headers=headers, redirect=False, retries=False,
                preload_content=False, decode_content=False, enforce_content_length=False,
            )  # fmt: skip
            body = answer.read(MAX_PAGE_BYTES + 1)
            answer.close()
        if time.monotonic() >= deadline_s:
            raise TimeoutError  # what has come may look whole
    except (OSError, ValueError, HTTPError) as error:
        late = time.monotonic() >= deadline_s
        reason = "it takes too long" if late else str(error) or type(error).__name__
        raise UpstreamError(f"cannot fetch the page: {reason}") from None
    finally:
        in_use.remove()
    if len(body) > MAX_PAGE_BYTES:
        raise UpstreamError(f"cannot fetch the page: it has more than {MAX_PAGE_BYTES} bytes")
    return answer.status, {name.lower(): value for name, value in answer.headers.items()}, body


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


def _to_ascii(host: str) -> str:
    return host.encode("idna").decode()


def _write_host(parts: SplitResult, host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host else _to_ascii(host)
    return name if port == _PORTS[parts.scheme.lower()] else f"{name}:{port}"


def _read(url: str, content_type: str, body: bytes) -> Document:
    kind, _, rest = content_type.lower().partition(";")
    charset = rest.partition("charset=")[2].partition(";")[0].strip(" \"'")
    text = body.decode(charset if _CHARSETS.match(charset) else "utf-8", errors="replace")
    kind = kind.strip()
    is_html = kind in ("text/html", "application/xhtml+xml")
    if is_html or kind.startswith("text/") or kind.endswith(("json", "xml")):
        return Document(url=url, text=text, is_html=is_html)
    raise UpstreamError(f"cannot read the page: its type is '{kind[:80]}', not text")


SEARCH_LIMIT_S = 15.0
MAX_ANSWER_BYTES = 2 * 1024 * 1024
MAX_RESULTS = 10
"""Ollama's limit."""


class _Answer(msgspec.Struct):
    results: list[SearchResult]


def search_web(base_url: str, query: str, count: int) -> list[SearchResult]:
    """Return up to `count` results of the SearXNG at `base_url`; blocks. Raises UpstreamError."""
    url = f"{base_url.rstrip('/')}/search?{urlencode({'q': query, 'format': 'json'})}"
    headers = {"Accept": "application/json", "User-Agent": "vllama"}
    body = b""
    try:
        with (
            Connections(
                connect_s=SEARCH_LIMIT_S, silence_s=SEARCH_LIMIT_S, direct=True
            ) as connections,
            connections.ask(url, headers, follow=False) as answer,
        ):
            if answer.status == 200:
                body = read_body(answer, MAX_ANSWER_BYTES)
    except RequestFailed as error:
        reason = describe_connection_error(error)
        raise UpstreamError(
            f"cannot search the web: {base_url} does not answer: {reason}",
            hint="check the setting searxng",
        ) from None
    except SourceError:
        pass  # an answer that is too long, or compressed, is not SearXNG's
    if answer.status == 403:
        raise UpstreamError(
            f"cannot search the web: {base_url} refuses to answer in JSON",
            hint="add json to search.formats in its settings.yml",
        )
    if answer.status != 200:
        raise UpstreamError(f"cannot search the web: {base_url} answers with {answer.status}")
    try:
        found = msgspec.json.decode(body, type=_Answer)
    except (ValueError, RecursionError):
        raise UpstreamError(
            f"cannot search the web: {base_url} does not answer as SearXNG does"
        ) from None
    return [result for result in found.results if result.url][:count]
