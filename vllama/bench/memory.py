"""The memory of a server on this machine, with everything that it has started.

Counted is the proportional set size (PSS): a page that n processes share counts 1/n for each of
them, so that the sum over a process tree counts each page once. Only Linux tells it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from urllib.parse import urlsplit

import psutil

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class NotMeasured(Exception):
    """The memory cannot be told; the text says why."""


class Memory:
    """The process tree of the server that listens at `url`. Raises NotMeasured, all of it."""

    def __init__(self, url: str) -> None:
        if not sys.platform.startswith("linux"):
            raise NotMeasured("only Linux tells the memory of processes that share pages")
        parts = urlsplit(url)
        if parts.hostname not in LOOPBACK:
            raise NotMeasured(f"{parts.hostname} is not this machine")
        self._root = _listener(parts.port or 80)
        self.read()

    def read(self) -> int:
        """Return the bytes that the tree holds now."""
        try:
            tree = [self._root, *self._root.children(recursive=True)]
            total = 0
            for process in tree:
                with suppress(psutil.NoSuchProcess):  # it has ended since
                    total += process.memory_full_info().pss
        except psutil.AccessDenied:
            raise NotMeasured("the server belongs to another user") from None
        except psutil.NoSuchProcess:
            raise NotMeasured("the server has ended") from None
        return total


def _listener(port: int) -> psutil.Process:
    found = [
        connection.pid
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    ]
    if not found:
        raise NotMeasured(f"no process of this machine listens on port {port}")
    pid = next((pid for pid in found if pid), None)
    if pid is None:
        raise NotMeasured(f"what listens on port {port} belongs to another user")
    return psutil.Process(pid)
