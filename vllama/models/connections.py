"""Connections that threads are reading from, so that another thread can wake the readers.

A read that waits for a silent server cannot be interrupted in Python; shutting the connection
down ends it at once. Sockets only: knows no HTTP.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class OpenConnections:
    """The connections of one download that are being read right now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[int, socket.socket] = {}

    @contextmanager
    def watch(self, extensions: Mapping[str, object]) -> Iterator[None]:
        """Keep a response's connection here while its body is read.

        `extensions` are the response's, with httpcore's "network_stream".
        """
        stream = extensions.get("network_stream")
        ask = getattr(stream, "get_extra_info", None)
        connection = ask("socket") if ask is not None else None
        if connection is not None:
            with self._lock:
                self._sockets[id(extensions)] = connection
        try:
            yield
        finally:
            with self._lock:
                self._sockets.pop(id(extensions), None)

    def shut_down(self) -> None:
        """End all reads; their owners close the connections."""
        with self._lock:
            for connection in self._sockets.values():
                # through a duplicate: another thread's TLS object is not to be touched
                with (
                    contextlib.suppress(OSError),
                    socket.socket(fileno=os.dup(connection.fileno())) as twin,
                ):
                    twin.shutdown(socket.SHUT_RDWR)
