"""A voice of `vllama serve` that is in the log too, where `vllama logs` finds it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vllama.cli.server_log import SHOWN

if TYPE_CHECKING:
    from vllama.daemon_ui import ServeUi
    from vllama.models.types import PullEvent

log = logging.getLogger("vllama.serve")


class LoggedUi:
    """Logs what is said; says it on a terminal as well if there is one.

    A terminal that has gone (its user has left) is no reason to fail.
    """

    def __init__(self, terminal: ServeUi | None) -> None:
        self._terminal = terminal
        self._extra = SHOWN if terminal else None
        self._pulled = ""

    def note(self, text: str) -> None:
        """Say something worth knowing."""
        log.info("%s", text, extra=self._extra)
        self._say(lambda terminal: terminal.note(text))

    def ready(self, lines: Sequence[str]) -> None:
        """Say that the server answers."""
        for line in lines:
            log.info("%s", line, extra=self._extra)
        self._say(lambda terminal: terminal.ready(lines))

    def loading(self, text: str) -> None:
        """Show how far an engine's start is: its own log has that, ours need not."""
        self._say(lambda terminal: terminal.loading(text))

    def pull(self, event: PullEvent) -> None:
        """Show how far a download is; the log has its steps."""
        if event.status != self._pulled:
            self._pulled = event.status
            log.info("pull: %s", event.status, extra=self._extra)
        self._say(lambda terminal: terminal.pull(event))

    def error(self, message: str, hint: str | None) -> None:
        """Say what went wrong and what to do."""
        self.log_error(message, hint)
        self._say(lambda terminal: terminal.error(message, hint))

    def log_error(self, message: str, hint: str | None) -> None:
        """Log what went wrong; somebody else says it."""
        log.error("%s", f"{message}; {hint}" if hint else message, extra=self._extra)

    def log_bug(self) -> None:
        """Log the exception that is being handled; Python itself prints it, at the very end."""
        log.critical("ended by an error that was not expected", exc_info=True, extra=SHOWN)

    def _say(self, speak: Callable[[ServeUi], None]) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError, ValueError):
                speak(self._terminal)
