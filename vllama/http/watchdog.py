"""A watchdog of the event loop: names the callback that holds it up, for that holds up everybody.

A thread asks the loop for a sign of life now and then. While none comes, it looks where the loop's
thread is: the same callback for longer than `LIMIT_S` is logged and counted. A token costs nothing
of that, and asyncio's debug mode, which would, is not needed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from vllama.metrics import Metrics

log = logging.getLogger(__name__)

LIMIT_S = 0.1
PAUSE_S = 0.05  # between two signs of life
STEP_S = 0.02  # between two looks at a loop that gives none
LOG_PAUSE_S = 1.0
FRAMES = 8
"""So many of the innermost calls stand in the log."""

_RUN = asyncio.Runner.run.__code__
_PLUMBING = (os.path.dirname(asyncio.__file__) + os.sep, selectors.__file__)  # noqa: PTH120


@contextmanager
def watched(metrics: Metrics) -> Iterator[None]:
    """Watch the running loop, which an `asyncio.Runner` runs."""
    watchdog = Watchdog(asyncio.get_running_loop(), metrics)
    thread = threading.Thread(target=watchdog.run, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watchdog.stop()


class Watchdog:
    """Looks at one loop; to be made in its thread, `run` in another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics) -> None:
        self._loop = loop
        self._metrics = metrics
        self._thread = threading.get_ident()
        self._cpu_s = clock_of(self._thread)
        self._alive = threading.Event()
        self._stopped = threading.Event()
        self._next_line_s = 0.0

    def run(self) -> None:
        """Watch until `stop`, or until the loop is closed."""
        while not self._stopped.wait(PAUSE_S):
            self._alive.clear()
            try:
                self._loop.call_soon_threadsafe(self._alive.set)
            except RuntimeError:  # it is closed
                return
            self._look()

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()
        self._alive.set()

    def _look(self) -> None:
        """Return when the loop has given its sign of life.

        A step that took us longer than it should counts only by the CPU time that the loop's thread
        had meanwhile: either code in C kept the interpreter, or the process or the machine stood
        still, and nobody is to blame.
        """
        seen: FrameType | None = None
        lasted_s, told = 0.0, False
        now_s, cpu_s = time.monotonic(), self._cpu_s()
        while not self._alive.wait(STEP_S):
            before_s, now_s = now_s, time.monotonic()
            spent_s, cpu_s = cpu_s, self._cpu_s()
            beyond_s = min(now_s - before_s - STEP_S, cpu_s - spent_s)
            calls = calls_of(self._thread)
            callback = calls[0] if calls else None
            if callback is not seen:
                self._count(told, lasted_s)
                seen, lasted_s, told = callback, beyond_s, False
            else:
                lasted_s += STEP_S + beyond_s
            if callback is not None and not told and lasted_s >= LIMIT_S:
                told = True
                self._tell(calls, lasted_s)
        self._count(told, lasted_s)

    def _count(self, told: bool, seconds: float) -> None:
        if told:
            self._metrics.slow_callback(seconds)

    def _tell(self, calls: list[FrameType], seconds: float) -> None:
        now_s = time.monotonic()
        if now_s < self._next_line_s:
            return
        self._next_line_s = now_s + LOG_PAUSE_S
        log.warning(
            "a callback holds up the event loop, for %.2f s so far: %s",
            seconds,
            " < ".join(map(place_of, reversed(calls[-FRAMES:]))),
        )


def calls_of(thread: int) -> list[FrameType]:
    """Return the calls of the callback that the loop of `thread` runs, the outermost first.

    Empty if it waits for something to do.
    """
    calls: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not _RUN:
        calls.append(frame)
        frame = frame.f_back
    while calls and calls[-1].f_code.co_filename.startswith(_PLUMBING):
        calls.pop()
    return calls[::-1]


def place_of(frame: FrameType) -> str:
    """Return where a call stands: module, function and line."""
    module = frame.f_globals.get("__name__", "?")
    return f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}"


def clock_of(thread: int) -> Callable[[], float]:
    """Return what tells the CPU time of a thread, or of the process where that cannot be asked."""
    if not hasattr(time, "pthread_getcpuclockid"):  # macOS
        return time.process_time
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime(clock)
