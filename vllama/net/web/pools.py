"""urllib3's pools of connections, whose sockets another thread can shut down.

A module of its own, because `connections` is about requests and this about sockets.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Any

import truststore
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.response import HTTPResponse


class SocketsInUse:
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


in_use = SocketsInUse()


class _Connection(HTTPConnection):
    """A connection whose handshake and wait for the head can be ended as well."""

    _twin: socket.socket | None = None

    def _new_conn(self) -> socket.socket:
        sock = super()._new_conn()
        self._twin = sock.dup()  # a descriptor of its own: TLS takes over the first one
        in_use.add(self._twin)
        return sock

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # urllib3's own differs too
        in_use.add(self.sock)
        self._close_twin()
        return super().getresponse()

    def close(self) -> None:
        self._close_twin()
        super().close()

    def _close_twin(self) -> None:
        if self._twin is not None:
            self._twin.close()
            self._twin = None


class _SecureConnection(_Connection, HTTPSConnection):
    pass


class PlainPool(HTTPConnectionPool):
    ConnectionCls = _Connection


class SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection

    def __init__(self, *args: Any, **options: Any) -> None:
        # not for all pools: reading the certificates takes longer than a request on this machine
        super().__init__(*args, **options, ssl_context=_make_ssl_context())


def _make_ssl_context() -> ssl.SSLContext:
    """Return the certificates to trust: the environment's, else the system's."""
    paths = ssl.get_default_verify_paths()  # knows SSL_CERT_FILE and SSL_CERT_DIR
    own = (paths.openssl_cafile, paths.openssl_capath)
    if (paths.cafile or own[0], paths.capath or own[1]) != own:
        return ssl.create_default_context()
    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
