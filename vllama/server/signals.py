"""The signals of `vllama serve`: how far its end has come, and what a hang-up means.

SIGHUP says two things. From a terminal that is being closed: end, for nobody is there any more.
From `kill -HUP` or a service manager: read the settings again. So it ends the server only if that
was started on a terminal, without `nohup`, and the terminal has gone. A shell that leaves (zsh)
sends it just before its terminal goes: hence a second look a moment later.

Signals are heard by Python's own handlers, which the main thread runs between two instructions of
whatever callback of the loop is under way; what they mean for the server is left to the loop. So a
loop that is stuck still ends with the third (docs/decisions/0019).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from msgspec import Struct

from vllama.errors import EngineMissing

SECOND_LOOK_S = 1.0
TERMINAL = "/dev/tty"
"""A process's own terminal: cannot be opened where there is none (tty(4))."""


class Stop(Struct):
    """How far the end has come: each signal goes one step further."""

    asked: asyncio.Event
    hurry: asyncio.Event
    code: int = 0
    missing: EngineMissing | None = None
    heard: int = 0

    def hear(self, number: int) -> None:
        """Count a signal, whether or not the loop can act on it; the third ends the process."""
        if self.heard >= 2 or self.hurry.is_set():
            os._exit(128 + number)  # the guards see our pipes close and end the engines
        self.heard += 1

    def further(self) -> None:
        """Go one step further; to be called in the loop."""
        if self.asked.is_set():
            self.hurry.set()
        self.asked.set()


class HangUp:
    """What SIGHUP means for one run of the server: sets `reload`, or begins the end."""

    def __init__(self, stop: Stop, reload: asyncio.Event) -> None:
        self._stop, self._reload = stop, reload
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # `nohup`
        self._needs_terminal = not ignored and has_terminal()

    def heard(self) -> None:
        """Act on the signal; to be called in the loop."""
        if not self._ended_with_terminal():
            self._reload.set()
            asyncio.get_running_loop().call_later(SECOND_LOOK_S, self._ended_with_terminal)

    def _ended_with_terminal(self) -> bool:
        """End the server if its terminal has gone; once, though many tell of it."""
        if not self._needs_terminal or has_terminal():
            return False
        if not self._stop.asked.is_set():
            self._stop.further()
        return True


def has_terminal() -> bool:
    """Tell whether this process has a terminal that still lives."""
    try:
        os.close(os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def handled_signals(stop: Stop, reload: asyncio.Event) -> Iterator[None]:
    """Let TERM and INT stop the running loop in order, and HUP as `HangUp` says."""
    loop = asyncio.get_running_loop()
    hang_up = HangUp(stop, reload)

    def hear(number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            loop.call_soon_threadsafe(hang_up.heard)
        else:
            stop.hear(number)
            loop.call_soon_threadsafe(stop.further)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, hear) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
