"""Tells the service manager how the server is: the datagrams of sd_notify(3).

Without a manager that asks for it ($NOTIFY_SOCKET) nothing happens.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


class ServiceNotice:
    """The manager's socket, which is a file or, with a leading @, an abstract name."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self, status: str) -> None:
        """Say that requests are answered from now on, at a start or after a reload."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Say that the settings are being read again; `ready` has to follow."""
        self._send("RELOADING=1")

    def stopping(self, status: str) -> None:
        """Say that the server is about to end."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def describe(self, status: str) -> None:
        """Give a line for `systemctl status`."""
        self._send(f"STATUS={status}")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.connect(self._address)
                manager.send(text.encode())
        except OSError as error:
            log.warning("cannot tell the service manager: %s", error)
