"""The signals of `vllama serve`: how they end it, and what a hang-up means.

SIGHUP has two meanings. When a terminal closes it means: end, nobody is there any more. From
`kill -HUP` or a service manager it means: read the settings again. So it ends the server only if it
was started on a terminal, without `nohup`, and that terminal has gone. zsh sends it just before the
terminal goes, hence a second look a moment later.

Python's own handlers take the signals: the main thread runs them between two instructions of
whatever the loop is doing, and the loop then acts on them. So the third signal ends even a loop
that is stuck (docs/decisions/0019).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from msgspec import Struct

from vllama.base.errors import EngineMissing

SECOND_LOOK_S = 1.0
TERMINAL = "/dev/tty"
"""A process's own terminal: cannot be opened where there is none (tty(4))."""


class Stop(Struct):
    """Stage of the server's shutdown: each signal takes it one step further."""

    asked: asyncio.Event
    hurry: asyncio.Event
    code: int = 0
    missing: EngineMissing | None = None
    signals: int = 0

    def count(self, number: int) -> None:
        """Count a signal, whether or not the loop can act on it; the third ends the process."""
        if self.signals >= 2 or self.hurry.is_set():
            os._exit(128 + number)  # the guards see our pipes close and end the engines
        self.signals += 1

    def advance(self) -> None:
        """Go one step further; to be called in the loop."""
        if self.asked.is_set():
            self.hurry.set()
        self.asked.set()


class HangUp:
    """Handler of SIGHUP for one run of the server: sets `reload`, or begins the shutdown."""

    def __init__(self, stop: Stop, reload: asyncio.Event) -> None:
        self._stop, self._reload = stop, reload
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # `nohup`
        self._needs_terminal = not ignored and has_terminal()

    def handle(self) -> None:
        """Act on the signal; to be called in the loop."""
        if not self._end_with_terminal():
            self._reload.set()
            asyncio.get_running_loop().call_later(SECOND_LOOK_S, self._end_with_terminal)

    def _end_with_terminal(self) -> bool:
        """End the server if its terminal has gone; a second SIGHUP for that is no step."""
        if not self._needs_terminal or has_terminal():
            return False
        if not self._stop.asked.is_set():
            self._stop.advance()
        return True


def has_terminal() -> bool:
    """Tell whether this process has a terminal that is still open."""
    try:
        os.close(os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def handled_signals(stop: Stop, reload: asyncio.Event) -> Iterator[None]:
    """Let TERM and INT end the server in order, and HUP do what `HangUp` says."""
    loop = asyncio.get_running_loop()
    hang_up = HangUp(stop, reload)

    def handle(number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            loop.call_soon_threadsafe(hang_up.handle)
        else:
            stop.count(number)
            loop.call_soon_threadsafe(stop.advance)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
