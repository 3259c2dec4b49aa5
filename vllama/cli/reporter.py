"""Messages of `vllama serve` while it runs: on a terminal or a pipe, and in the log.

Everything goes to stderr, in the order in which it happens.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllama.cli.output import (
    console,
    is_terminal,
    say_aside,
    show_error,
    show_warning,
    wrap_words,
)
from vllama.cli.progress import SUCCESS, PullDisplay, open_display
from vllama.cli.server_log import SHOWN
from vllama.models.types import PullEvent

if TYPE_CHECKING:
    from rich.status import Status

    from vllama.server.reporter import Reporter


LOADING_EVERY_S = 2.0
"""On a pipe, how often a line of a load's progress is shown at most."""


class TerminalReporter:
    """Shows notes as lines, a load as a live line, a download as bars."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._fancy = is_terminal(sys.stderr)
        self._status: Status | None = None
        self._pull: PullDisplay | None = None
        self._last_loading = ("", -LOADING_EVERY_S)
        self._starting = True

    def note(self, text: str) -> None:
        """Print a line."""
        with self._lock:
            self._calm()
            say_aside(text)

    def warn(self, text: str) -> None:
        """Print a warning."""
        with self._lock:
            self._calm()
            show_warning(text)

    def ready(self, url: str, advice: str) -> None:
        """Print where the server is and what to type next; the line stands out."""
        with self._lock:
            self._calm()
            self._starting = False
            line = wrap_words(format_ready(url, advice), sys.stderr)
            if self._fancy:
                console(stderr=True).print(line, style="bold green")
            else:
                say_aside(line)

    def loading(self, text: str) -> None:
        """Show how far a load is; an empty text ends the display."""
        with self._lock:
            if not text:
                self._calm()
            elif self._fancy:
                self._spin(text)
            elif self._starting:  # afterwards the log tells enough
                self._print_loading(text)

    def pull(self, event: PullEvent) -> None:
        """Show how far a download is."""
        with self._lock:
            if self._status is not None:
                self._calm()
            if self._pull is None:
                self._pull = open_display()
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


def format_ready(url: str, advice: str) -> str:
    """Return the last line of a start."""
    return f"ready: {url} (try: {advice})"


log = logging.getLogger("vllama.serve")


class LogReporter:
    """Logs what is reported; until the server is ready, a terminal shows it as plain lines.

    From then on the terminal shows the log itself, so that its lines are of one style, and only
    what moves besides. A terminal that has gone (its user has left) is no reason to fail.
    """

    def __init__(
        self, terminal: Reporter | None, on_ready: Callable[[str], object] | None = None
    ) -> None:
        """`on_ready` is given the address when the server is ready."""
        self._terminal = terminal
        self._on_ready = on_ready
        self._extra = SHOWN if terminal else None
        self._pulled = ""

    def note(self, text: str) -> None:
        """Report something worth knowing."""
        self._report(logging.INFO, text, lambda terminal: terminal.note(text))

    def warn(self, text: str) -> None:
        """Report a warning."""
        self._report(logging.WARNING, text, lambda terminal: terminal.warn(text))

    def ready(self, url: str, advice: str) -> None:
        """Report that the start is over."""
        text = format_ready(url, advice)
        self._report(logging.INFO, text, lambda terminal: terminal.ready(url, advice))
        self._extra = None
        if self._on_ready is not None:
            self._on_ready(url)

    def _report(self, level: int, text: str, show: Callable[[Reporter], None]) -> None:
        if self._extra is None:  # the log itself is shown
            self.loading("")
        log.log(level, "%s", text, extra=self._extra)
        if self._extra is not None:
            self._say(show)

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
        """Print an error and its hint."""
        self.log_error(message, hint)
        self._say(lambda terminal: terminal.error(message, hint))

    def log_error(self, message: str, hint: str | None) -> None:
        """Log what went wrong; somebody else says it."""
        extra = SHOWN if self._terminal else None
        log.error("%s", f"{message}; {hint}" if hint else message, extra=extra)

    def log_bug(self) -> None:
        """Log the exception that is being handled; Python itself prints it, at the very end."""
        log.critical("unexpected error; the server has stopped", exc_info=True, extra=SHOWN)

    def _say(self, speak: Callable[[Reporter], None]) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError, ValueError):
                speak(self._terminal)
