"""The HTTP client toward the world: hubs, registries, storages, other servers.

It is urllib3, read in large pieces, with what all of them need beyond it: redirects that keep
credentials at home, one time limit for a head that drips, and another thread that can end a read.
Proxies and certificates come from the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`).
Why urllib3: docs/decisions/0027-urllib3-asks-the-world.md.
"""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from urllib3 import (
    BaseHTTPResponse,
    PoolManager,
    ProxyManager,
    Timeout,
    make_headers,
)
from urllib3.exceptions import HTTPError, LocationParseError, ProtocolError, TimeoutError
from urllib3.util import Url, parse_url

from vllama.base.threads import ended_after
from vllama.net.web.pools import PlainPool, SecurePool, in_use

PORTS = {"http": 80, "https": 443}
READ_BYTES = 512 * 1024
_MOST_REDIRECTS = 10
_CONNECTION = re.compile(r"^\w+\(host=[^)]*\): ")  # which urllib3 names first
_MOST_KEPT = 16  # connections to one host
REDIRECTS = frozenset({301, 302, 303, 307, 308})


def find_origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port; credentials for one origin are not sent to another."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:  # not a number
        port = None
    return parts.scheme, parts.hostname, port or PORTS.get(parts.scheme)


class RequestFailed(Exception):
    """There is no answer, or not a whole one."""


class ConnectionBroken(RequestFailed):
    """The connection could not be made, or ended too early."""


class BadAddress(RequestFailed):
    """An address, or a redirect, that cannot be followed; another try would not help."""


class StreamedResponse:
    """A response whose body has not been read. `length` is what the server announced, or None.

    `url` is the address that answered, after redirects.
    """

    def __init__(self, response: BaseHTTPResponse, url: str) -> None:
        self._response, self.url = response, url
        self.status, self.reason = response.status, response.reason or ""
        self.length = response.length_remaining
        self.headers: Mapping[str, str] = response.headers

    def read(self) -> bytes:
        """Return the bytes that have arrived, b"" at the end. Raises ConnectionBroken."""
        try:
            return self._response.read1(READ_BYTES)
        except (OSError, HTTPError) as error:
            raise ConnectionBroken(_reason(error)) from error


class Connections:
    """Connections, kept open. Safe for many threads; as a context manager it closes them.

    `connect_s` limits making a connection, `silence_s` the wait for the next bytes on it. `check`
    is called with each address before it is asked, those of redirects too, and may raise.
    `direct`: no proxy is asked, as for servers of the user's own.
    """

    def __init__(
        self,
        *,
        connect_s: float,
        silence_s: float,
        check: Callable[[str], object] = lambda address: None,
        direct: bool = False,
    ) -> None:
        self._check = check
        self._options: dict[str, Any] = {
            "timeout": Timeout(connect=connect_s, read=silence_s),
            "maxsize": _MOST_KEPT,
        }
        self._head_limit_s = connect_s + silence_s
        self._lock = threading.Lock()
        self._managers: dict[str, PoolManager] = {}
        self._proxies = {} if direct else urllib.request.getproxies()

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        for manager in self._managers.values():
            manager.clear()

    @contextmanager
    def ask(
        self,
        address: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        body: bytes | None = None,
        follow: bool = True,
    ) -> Iterator[StreamedResponse]:
        """Send a request; `follow` redirects, with credentials for the same origin only.

        Raises ConnectionBroken, BadAddress, and what `check` raises.
        """
        url = _parse_http(address)
        for _ in range(_MOST_REDIRECTS):
            self._check(str(url))
            response = self._send(method, url, headers, body)
            where = response.headers.get("location")
            if not follow or response.status not in REDIRECTS or not where:
                with _closing(response):
                    yield StreamedResponse(response, str(url))
                return
            with _closing(response):
                pass
            target = _parse_http(_join(str(url), where))
            if find_origin(str(target)) != find_origin(str(url)):
                headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
            url = target
        raise BadAddress("it redirects endlessly")

    def end_reads(self, threads: Sequence[threading.Thread]) -> None:
        """End what these threads read: each gets a ConnectionBroken, or the end of the body."""
        in_use.shut_down(threads)

    def _send(
        self, method: str, url: Url, headers: Mapping[str, str], body: bytes | None
    ) -> BaseHTTPResponse:
        """Send the request and read the head."""
        manager = self._manager(url)
        own = (threading.current_thread(),)
        for is_last in (False, True):
            try:
                with ended_after(self._head_limit_s, partial(self.end_reads, own)):
                    return manager.request(
                        method,
                        str(url),
                        body=body,
                        headers=dict(headers),
                        redirect=False,
                        retries=False,
                        preload_content=False,
                        decode_content=False,
                        enforce_content_length=False,  # the caller knows the length it wants
                    )
            except LocationParseError as error:  # a name that cannot be looked up (127..0.1)
                raise BadAddress(str(error)) from error
            except ProtocolError as error:
                # the first one may be a kept connection that the server has closed
                if is_last or method == "POST":
                    raise ConnectionBroken(_reason(error)) from error
            except (OSError, HTTPError) as error:
                raise ConnectionBroken(_reason(error)) from error
            except ValueError as error:  # it may quote a secret
                raise BadAddress("a header, such as a token or key, is invalid") from error
        raise AssertionError  # the last try returns or raises

    def _manager(self, url: Url) -> PoolManager:
        """Return the connections to `url`'s host: direct ones, or those of its proxy."""
        proxy = self._proxies.get(url.scheme or "") or self._proxies.get("all") or ""
        if proxy and urllib.request.proxy_bypass(url.host or ""):
            proxy = ""
        with self._lock:
            if proxy not in self._managers:
                manager = _open_manager(proxy, self._options)
                manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
                self._managers[proxy] = manager
            return self._managers[proxy]


@contextmanager
def _closing(response: BaseHTTPResponse) -> Iterator[None]:
    """Keep the connection of a response that was read to its end; close any other."""
    try:
        yield
        if response.length_remaining == 0:
            response.drain_conn()
    finally:
        in_use.remove()
        response.close()


def _open_manager(address: str, options: Mapping[str, Any]) -> PoolManager:
    """Make the connections through the proxy at `address`; "" means direct ones."""
    if not address:
        return PoolManager(**options)
    url = _parse(address if "://" in address else f"http://{address}")
    if url.scheme != "http":
        raise BadAddress(f"the proxy {url.scheme}://{url.host} is not a plain http proxy")
    headers = make_headers(proxy_basic_auth=unquote(url.auth)) if url.auth else None
    plain = url._replace(auth=None, path=None)
    return ProxyManager(str(plain), proxy_headers=headers, **options)


def _join(base: str, where: str) -> str:
    try:
        return urljoin(base, where)
    except ValueError as error:
        raise BadAddress(f"redirected to an invalid address: {error}") from error


def _parse(address: str) -> Url:
    try:
        return parse_url(address)
    except LocationParseError as error:
        raise BadAddress(f"invalid address '{address}': {error}") from error


def _parse_http(address: str) -> Url:
    url = _parse(address)
    if url.scheme not in PORTS or not url.host:
        raise BadAddress(f"'{address}' is not an http address")
    return url


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError | OSError) and "timed out" in str(error):
        return "the server stopped responding"
    inner = error.args[-1] if error.args and isinstance(error.args[-1], Exception) else error
    text = _CONNECTION.sub("", str(inner))
    return text or type(inner).__name__
