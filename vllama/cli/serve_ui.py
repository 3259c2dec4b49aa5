"""The voice of `vllama serve`: implements `vllama.daemon_ui.ServeUi` on a terminal or a pipe.

All of it goes to stderr, in the order it happens.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vllama.cli.output import console, is_terminal, say_aside, show_error
from vllama.cli.progress import SUCCESS, PullDisplay

if TYPE_CHECKING:
    from rich.status import Status

    from vllama.models.types import PullEvent

LOADING_EVERY_S = 2.0
"""On a pipe, how often a line of a load's progress is shown at most."""


class TerminalUi:
    """Shows notes as lines, a load as a live line, a download as bars."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._fancy = is_terminal(sys.stderr)
        self._status: Status | None = None
        self._pull: PullDisplay | None = None
        self._last_loading = ("", -LOADING_EVERY_S)

    def note(self, text: str) -> None:
        """Print a line."""
        with self._lock:
            self._calm()
            say_aside(text)

    def ready(self, lines: Sequence[str]) -> None:
        """Print that the server answers; the first line stands out."""
        with self._lock:
            self._calm()
            if self._fancy and lines:
                console(stderr=True).print(lines[0], style="bold green")
                lines = lines[1:]
            for line in lines:
                say_aside(line)

    def loading(self, text: str) -> None:
        """Show how far a load is; an empty text ends the display."""
        with self._lock:
            if not text:
                self._calm()
            elif self._fancy:
                self._spin(text)
            else:
                self._print_loading(text)

    def pull(self, event: PullEvent) -> None:
        """Show how far a download is."""
        with self._lock:
            if self._status is not None:
                self._calm()
            if self._pull is None:
                self._pull = PullDisplay()
            self._pull(event)
            if event.status == SUCCESS:
                self._calm()

    def error(self, message: str, hint: str | None) -> None:
        """Print an error and what to do."""
        with self._lock:
            self._calm()
            show_error(message, hint)

    def close(self) -> None:
        """End whatever moves on the screen."""
        with self._lock:
            self._calm()

    def _spin(self, text: str) -> None:
        width = console(stderr=True).width - 4
        text = text if len(text) <= width else text[: max(width - 1, 1)] + "…"
        if self._status is None:
            self._calm()
            self._status = console(stderr=True).status(text)
            self._status.start()
        else:
            self._status.update(text)

    def _print_loading(self, text: str) -> None:
        last, when_s = self._last_loading
        now_s = self._clock()
        if text != last and now_s - when_s >= LOADING_EVERY_S:
            self._last_loading = (text, now_s)
            say_aside(text)

    def _calm(self) -> None:
        """Stop what moves, so that a line can be printed."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._pull is not None:
            self._pull.close()
            self._pull = None
