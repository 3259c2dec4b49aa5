"""Reports of the server to its user, implemented by the command line, and to a service manager.

The latter gets the datagrams of sd_notify(3). Without a manager that asks for them ($NOTIFY_SOCKET)
nothing happens.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vllama.models.types import PullEvent


class Reporter(Protocol):
    """Shows what the server does. Any thread may call any method, which returns at once."""

    def note(self, text: str) -> None:
        """Show a line."""

    def warn(self, text: str) -> None:
        """Show a warning."""

    def ready(self, url: str, advice: str) -> None:
        """Show that the start is over, where the server is, and what to type next."""

    def loading(self, text: str) -> None:
        """Show the progress of an engine's start; an empty text ends the display."""

    def pull(self, event: PullEvent) -> None:
        """Show the progress of a download."""

    def error(self, message: str, hint: str | None) -> None:
        """Show an error and its hint."""


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

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.connect(self._address)
                manager.send(text.encode())
        except OSError as error:
            log.warning("cannot notify the service manager: %s", error)
