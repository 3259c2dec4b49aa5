"""The signals of `vllama serve`: how far its end has come, and what a hang-up means.

SIGHUP says two things. From a terminal that is being closed: end, for nobody is there any more.
From `kill -HUP` or a service manager: read the settings again. So it ends the server only if that
was started on a terminal, without `nohup`, and the terminal has gone. A shell that leaves (zsh)
sends it just before its terminal goes: hence a second look a moment later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

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

    def signal(self, number: int) -> None:
        """Go one step further."""
        if self.hurry.is_set():
            os._exit(128 + number)  # the guards see our pipes close and end the engines
        if self.asked.is_set():
            self.hurry.set()
        self.asked.set()


class HangUp:
    """What SIGHUP means for one run of the server: sets `reload`, or begins the end."""

    def __init__(self, stop: Stop, reload: asyncio.Event) -> None:
        self._stop, self._reload = stop, reload
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # `nohup`
        self._needs_terminal = not ignored and has_terminal()

    def signal(self) -> None:
        """Hear the signal."""
        if not self._ended_with_terminal():
            self._reload.set()
            asyncio.get_running_loop().call_later(SECOND_LOOK_S, self._ended_with_terminal)

    def _ended_with_terminal(self) -> bool:
        """End the server if its terminal has gone; once, though many tell of it."""
        if not self._needs_terminal or has_terminal():
            return False
        if not self._stop.asked.is_set():
            self._stop.signal(signal.SIGHUP)
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
    before = signal.getsignal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, HangUp(stop, reload).signal)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.signal, number)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGHUP, before)  # still ignored, if it was
