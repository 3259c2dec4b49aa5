"""HTTP for the bytes of large files: GET over kept connections, read in wide pieces.

Why not the HTTP library that asks the hub: it hands out pieces of 64 KiB and copies each of them
three times, which costs half the throughput of a fast line (measured, BENCHMARKS.md). The standard
library's client reads from the socket into what is written to the disk. Proxies and certificates
are taken from the environment as that library does (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import unquote

import httpx2

READ_BYTES = 512 * 1024
_MOST_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}


class Broken(Exception):
    """The connection could not be made, or ended before its time."""


class BadAddress(Exception):
    """An address, or a redirect, that cannot be followed; another try would not help."""


class OpenConnections:
    """The connections of one download that are being read right now.

    A read that waits for a silent server cannot be interrupted in Python; shutting the connection
    down ends it at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    @contextmanager
    def watch(self, connection: socket.socket) -> Iterator[None]:
        """Keep a connection here while it is being read."""
        with self._lock:
            self._sockets.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(connection)

    def shut_down(self) -> None:
        """End all reads; their owners close the connections."""
        with self._lock:
            for connection in self._sockets:
                # through a duplicate: another thread's TLS object is not to be touched
                with (
                    contextlib.suppress(OSError),
                    socket.socket(fileno=os.dup(connection.fileno())) as twin,
                ):
                    twin.shutdown(socket.SHUT_RDWR)


class Answer:
    """One answer, its body not read yet. `length` is what the server announced, if anything.

    `headers` by their names in lower case.
    """

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self.status = response.status
        self.length = response.length
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def read(self) -> bytes:
        """Return what has arrived, b"" at the end. Raises Broken."""
        try:
            return self._response.read1(READ_BYTES)
        except (OSError, HTTPException) as error:
            raise Broken(_reason(error)) from error


class Wire:
    """Kept connections to storages. Safe for many threads; use as a context manager.

    `connect_s` bounds making a connection, `silence_s` the wait for the next bytes on it.
    """

    def __init__(self, *, connect_s: float, silence_s: float) -> None:
        self._connect_s, self._silence_s = connect_s, silence_s
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str, int], list[HTTPConnection]] = {}
        self._closed = False
        self._tls: ssl.SSLContext | None = None
        self._proxies = urllib.request.getproxies()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            kept = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in kept:
            connection.close()

    @contextmanager
    def get(
        self, address: str, headers: Mapping[str, str], reading: OpenConnections
    ) -> Iterator[Answer]:
        """Ask for `address`, follow redirects; credentials do not go to another origin.

        The connection is in `reading` meanwhile. Raises Broken, BadAddress.
        """
        url = _parsed(address)
        for _ in range(_MOST_REDIRECTS):
            with self._exchange(url, headers, reading) as answer:
                where = answer.headers.get("location")
                if answer.status not in _REDIRECTS or not where:
                    yield answer
                    return
            try:
                target = _parsed(str(url.join(where)))
            except httpx2.InvalidURL as error:
                raise BadAddress(f"it was sent to an impossible address: {error}") from error
            if _origin(target) != _origin(url):
                headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
            url = target
        raise BadAddress("it was redirected without end")

    @contextmanager
    def _exchange(
        self, url: httpx2.URL, headers: Mapping[str, str], reading: OpenConnections
    ) -> Iterator[Answer]:
        connection, plug, response = self._ask(url, headers, reading)
        kept = False
        try:
            with reading.watch(plug):
                yield Answer(response)
            if response.length == 0 and not response.will_close:
                response.read()  # its end: the connection can be used again
                kept = self._keep(url, connection)
        finally:
            if not kept:
                response.close()
                connection.close()

    def _ask(
        self, url: httpx2.URL, headers: Mapping[str, str], reading: OpenConnections
    ) -> tuple[HTTPConnection, socket.socket, HTTPResponse]:
        """Send the request and read the head, on a kept connection if there is one."""
        while True:
            kept = self._kept(url)
            connection = kept or self._open(url)
            plug = connection.sock  # an answer that is its last takes it from the connection
            try:
                with reading.watch(plug):
                    return connection, plug, self._head(connection, url, headers)
            except (OSError, HTTPException) as error:
                connection.close()
                # the server may have closed a kept one; a silent one is no such case
                if kept is None or isinstance(error, TimeoutError):
                    raise Broken(_reason(error)) from error

    def _head(
        self, connection: HTTPConnection, url: httpx2.URL, headers: Mapping[str, str]
    ) -> HTTPResponse:
        proxy = self._proxy(url) if url.scheme == "http" else None
        target = str(url.copy_with(fragment=None)) if proxy else url.raw_path.decode("ascii")
        extra = _credentials(proxy) if proxy else {}
        connection.request("GET", target, headers={**headers, **extra})
        return connection.getresponse()

    def _open(self, url: httpx2.URL) -> HTTPConnection:
        proxy = self._proxy(url)
        host, port = _host(proxy or url)
        connection: HTTPConnection
        if url.scheme == "https":
            connection = HTTPSConnection(
                host, port, timeout=self._connect_s, context=self._certificates()
            )
            if proxy is not None:
                connection.set_tunnel(*_host(url), headers=_credentials(proxy))
        else:
            connection = HTTPConnection(host, port, timeout=self._connect_s)
        try:
            connection.connect()
        except (OSError, HTTPException) as error:
            connection.close()
            raise Broken(_reason(error)) from error
        connection.sock.settimeout(self._silence_s)
        return connection

    def _certificates(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = httpx2.create_ssl_context()
            return self._tls

    def _proxy(self, url: httpx2.URL) -> httpx2.URL | None:
        address = self._proxies.get(url.scheme) or self._proxies.get("all")
        if not address or urllib.request.proxy_bypass(url.host):
            return None
        proxy = httpx2.URL(address if "://" in address else f"http://{address}")
        if proxy.scheme != "http":
            raise BadAddress(f"the proxy {proxy.scheme}://{proxy.host} is no plain http proxy")
        return proxy

    def _kept(self, url: httpx2.URL) -> HTTPConnection | None:
        with self._lock:
            idle = self._idle.get(_origin(url))
            return idle.pop() if idle else None

    def _keep(self, url: httpx2.URL, connection: HTTPConnection) -> bool:
        with self._lock:
            if not self._closed:
                self._idle.setdefault(_origin(url), []).append(connection)
            return not self._closed


def _parsed(address: str) -> httpx2.URL:
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL as error:
        raise BadAddress(f"the address '{address}' is impossible: {error}") from error
    if url.scheme not in _PORTS or not url.host:
        raise BadAddress(f"the address '{address}' is no http address")
    return url


def _host(url: httpx2.URL) -> tuple[str, int]:
    return url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, *_host(url)


def _credentials(proxy: httpx2.URL) -> dict[str, str]:
    if not proxy.userinfo:
        return {}
    pair = unquote(proxy.userinfo.decode("ascii")).encode()
    return {"Proxy-Authorization": f"Basic {b64encode(pair).decode()}"}


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the server fell silent"
    return str(error) or type(error).__name__
