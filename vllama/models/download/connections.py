"""HTTP for the bytes of large files: urllib3, read in large pieces; another thread can end a read.

Why not httpx2, which asks the hub: it hands out pieces of 64 KiB and copies each of them three
times, which costs half the throughput of a fast line (docs/decisions/0027). Proxies and
certificates come from the environment as with httpx2 (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urljoin

import httpx2
from urllib3 import (
    BaseHTTPResponse,
    HTTPConnectionPool,
    HTTPSConnectionPool,
    PoolManager,
    ProxyManager,
    Timeout,
    make_headers,
)
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, LocationParseError, ProtocolError, TimeoutError
from urllib3.response import HTTPResponse
from urllib3.util import Url, parse_url

READ_BYTES = 512 * 1024
_MOST_REDIRECTS = 10
_MOST_KEPT = 16  # connections to one host
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}


class ConnectionBroken(Exception):
    """The connection could not be made, or ended too early."""


class BadAddress(Exception):
    """An address, or a redirect, that cannot be followed; another try would not help."""


class _SocketsInUse:
    """The socket that each thread waits for. Safe for many threads.

    A read that waits for a silent server cannot be interrupted in Python; shutting its socket down
    ends it at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[int, socket.socket] = {}

    def add(self, used: socket.socket | None) -> None:
        if used is not None:
            with self._lock:
                self._sockets[threading.get_ident()] = used

    def remove(self) -> None:
        with self._lock:
            self._sockets.pop(threading.get_ident(), None)

    def shut_down(self, threads: Sequence[threading.Thread]) -> None:
        with self._lock:
            for used in (self._sockets.get(thread.ident or 0) for thread in threads):
                if used is None:
                    continue
                # through a duplicate: this thread must not touch another thread's TLS object
                with (
                    contextlib.suppress(OSError),
                    socket.socket(fileno=os.dup(used.fileno())) as twin,
                ):
                    twin.shutdown(socket.SHUT_RDWR)


_in_use = _SocketsInUse()


class _Connection(HTTPConnection):
    """A connection whose wait for the head can be ended as well."""

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # urllib3's own differs too
        _in_use.add(self.sock)
        return super().getresponse()


class _SecureConnection(HTTPSConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # urllib3's own differs too
        _in_use.add(self.sock)
        return super().getresponse()


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class StreamedResponse:
    """A response whose body has not been read. `length` is what the server announced, or None."""

    def __init__(self, response: BaseHTTPResponse) -> None:
        self._response = response
        self.status = response.status
        self.length = response.length_remaining
        self.headers: Mapping[str, str] = response.headers

    def read(self) -> bytes:
        """Return what has arrived, b"" at the end. Raises Broken."""
        try:
            return self._response.read1(READ_BYTES)
        except (OSError, HTTPError) as error:
            raise ConnectionBroken(_reason(error)) from error


class Connections:
    """Connections to storages, kept open. Safe for many threads; use as a context manager.

    `connect_s` limits making a connection, `silence_s` the wait for the next bytes on it.
    """

    def __init__(self, *, connect_s: float, silence_s: float) -> None:
        self._options: dict[str, Any] = {
            "timeout": Timeout(connect=connect_s, read=silence_s),
            "maxsize": _MOST_KEPT,
            "ssl_context": httpx2.create_ssl_context(),
        }
        self._lock = threading.Lock()
        self._managers: dict[str, PoolManager] = {}
        self._proxies = urllib.request.getproxies()

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        for manager in self._managers.values():
            manager.clear()

    @contextmanager
    def get(self, address: str, headers: Mapping[str, str]) -> Iterator[StreamedResponse]:
        """Ask for `address` and follow redirects; credentials do not go to another origin.

        Raises Broken, BadAddress.
        """
        url = _parsed(address)
        for _ in range(_MOST_REDIRECTS):
            response = self._ask(url, headers)
            where = response.headers.get("location")
            if response.status not in _REDIRECTS or not where:
                with _closing(response):
                    yield StreamedResponse(response)
                return
            with _closing(response):
                pass
            target = _parsed(_join(str(url), where))
            if _origin(target) != _origin(url):
                headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
            url = target
        raise BadAddress("it was redirected without end")

    def end_reads(self, threads: Sequence[threading.Thread]) -> None:
        """End what these threads read; each of them gets a Broken, or the end of the body."""
        _in_use.shut_down(threads)

    def _ask(self, url: Url, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """Send the request and read the head."""
        manager = self._manager(url)
        for is_last in (False, True):
            try:
                return manager.request(
                    "GET",
                    str(url),
                    headers=dict(headers),
                    redirect=False,
                    retries=False,
                    preload_content=False,
                    decode_content=False,
                    enforce_content_length=False,  # the caller knows the length it wants
                )
            except ProtocolError as error:
                if is_last:  # the first one may be a kept connection that the server has closed
                    raise ConnectionBroken(_reason(error)) from error
            except (OSError, HTTPError) as error:
                raise ConnectionBroken(_reason(error)) from error
        raise AssertionError  # the last try returns or raises

    def _manager(self, url: Url) -> PoolManager:
        """Return the connections to `url`'s host: direct ones, or those of its proxy."""
        proxy = self._proxies.get(url.scheme or "") or self._proxies.get("all") or ""
        if proxy and urllib.request.proxy_bypass(url.host or ""):
            proxy = ""
        with self._lock:
            if proxy not in self._managers:
                manager = _open_manager(proxy, self._options)
                manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
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
        _in_use.remove()
        response.close()


def _open_manager(address: str, options: Mapping[str, Any]) -> PoolManager:
    """Make the connections through the proxy at `address`; "" means direct ones."""
    if not address:
        return PoolManager(**options)
    url = _parse(address if "://" in address else f"http://{address}")
    if url.scheme != "http":
        raise BadAddress(f"the proxy {url.scheme}://{url.host} is no plain http proxy")
    headers = make_headers(proxy_basic_auth=unquote(url.auth)) if url.auth else None
    plain = url._replace(auth=None, path=None)
    return ProxyManager(str(plain), proxy_headers=headers, **options)


def _join(base: str, where: str) -> str:
    try:
        return urljoin(base, where)
    except ValueError as error:
        raise BadAddress(f"it was sent to an impossible address: {error}") from error


def _parse(address: str) -> Url:
    try:
        return parse_url(address)
    except LocationParseError as error:
        raise BadAddress(f"the address '{address}' is impossible: {error}") from error


def _parsed(address: str) -> Url:
    url = _parse(address)
    if url.scheme not in _PORTS or not url.host:
        raise BadAddress(f"the address '{address}' is no http address")
    return url


def _origin(url: Url) -> tuple[str | None, str | None, int]:
    return url.scheme, url.host, url.port or _PORTS[url.scheme or "http"]


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError | OSError) and "timed out" in str(error):
        return "the server fell silent"
    inner = error.args[-1] if error.args and isinstance(error.args[-1], Exception) else error
    return str(inner) or type(inner).__name__
