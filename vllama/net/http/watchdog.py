"""A watchdog of the event loop: it counts callbacks that block the loop, and so all requests.

The loop runs a heartbeat at intervals. While one is overdue, a thread samples the stack of the
loop's thread. A callback that runs longer than `LIMIT_S` is counted, and logged with `--debug`.
Unlike the debug mode of asyncio, this costs nothing per token.
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

from vllama.observe.metrics.server_metrics import Metrics

log = logging.getLogger(__name__)

LIMIT_S = 0.1
PAUSE_S = 0.05  # between two heartbeats
IDLE_PAUSE_S = 1.0  # while there is nobody who could wait: waking up costs a laptop its battery
SAMPLE_S = 0.02  # between two samples of a blocked loop
LOG_PAUSE_S = 1.0
FRAMES = 8
"""The number of innermost calls in a log line."""

_RUN = asyncio.Runner.run.__code__
_PLUMBING = (os.path.dirname(asyncio.__file__) + os.sep, selectors.__file__)  # noqa: PTH120


@contextmanager
def watch_loop(metrics: Metrics, is_idle: Callable[[], bool] = bool) -> Iterator[None]:
    """Watch the running loop, which an `asyncio.Runner` runs; seldom while it `is_idle`."""
    watchdog = Watchdog(asyncio.get_running_loop(), metrics, is_idle)
    thread = threading.Thread(target=watchdog.run, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watchdog.stop()


class Watchdog:
    """The watchdog of one loop; created in the loop's thread, and run in another."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, metrics: Metrics, is_idle: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._is_idle = is_idle
        self._thread = threading.get_ident()
        self._cpu_s = get_cpu_clock(self._thread)
        self._stopped = False
        self._next_line_s = 0.0
        self._schedule()

    def _schedule(self) -> None:
        """Schedule the next heartbeat, in the loop's thread."""
        pause_s = IDLE_PAUSE_S if self._is_idle() else PAUSE_S
        self._due_s = time.monotonic() + pause_s
        self._timer = self._loop.call_later(pause_s, self._beat)

    def _beat(self) -> None:
        self._metrics.loop_lag.observe((), max(0.0, time.monotonic() - self._due_s))
        self._schedule()

    def run(self) -> None:
        """Watch until `stop`; a thread of its own does nothing else."""
        while not self._stopped:
            time.sleep(max(PAUSE_S, self._due_s - time.monotonic()))
            if time.monotonic() > self._due_s + SAMPLE_S:
                self._watch_heartbeat()

    def stop(self) -> None:
        """End `run`, soon; to be called in the loop's thread."""
        self._stopped = True
        self._timer.cancel()

    def _watch_heartbeat(self) -> None:
        """Wait for the heartbeat, and log the callback that delays it.

        A pause between samples that is longer than planned counts only as far as the loop's thread
        used CPU time in it. C code may have held the interpreter lock, which is the callback's
        fault. But the whole process or machine may have been suspended, which is not.
        """
        seen: FrameType | None = None
        lasted_s, logged = 0.0, False
        now_s, cpu_s = time.monotonic(), self._cpu_s()
        due_s = self._due_s
        while True:
            time.sleep(SAMPLE_S)
            if self._due_s != due_s or self._stopped:
                break
            before_s, now_s = now_s, time.monotonic()
            spent_s, cpu_s = cpu_s, self._cpu_s()
            beyond_s = min(now_s - before_s - SAMPLE_S, cpu_s - spent_s)
            calls = read_calls(self._thread)
            callback = calls[0] if calls else None
            if callback is not seen:
                self._count(logged)
                seen, lasted_s, logged = callback, beyond_s, False
            else:
                lasted_s += SAMPLE_S + beyond_s
            if callback is not None and not logged and lasted_s >= LIMIT_S:
                logged = True
                self._log(calls, lasted_s)
        self._count(logged)

    def _count(self, logged: bool) -> None:
        if logged:
            self._metrics.slow_callbacks.add()

    def _log(self, calls: list[FrameType], seconds: float) -> None:
        now_s = time.monotonic()
        if now_s < self._next_line_s:
            return
        self._next_line_s = now_s + LOG_PAUSE_S
        log.debug(
            "a callback has blocked the event loop for %.2f s so far: %s",
            seconds,
            " < ".join(map(format_call, reversed(calls[-FRAMES:]))),
        )


def read_calls(thread: int) -> list[FrameType]:
    """Return the calls of the callback that the loop of `thread` runs, the outermost first.

    The list is empty while the loop is idle.
    """
    calls: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not _RUN:
        calls.append(frame)
        frame = frame.f_back
    while calls and calls[-1].f_code.co_filename.startswith(_PLUMBING):
        calls.pop()
    return calls[::-1]


def format_call(frame: FrameType) -> str:
    """Return the module, function and line of a call."""
    module = frame.f_globals.get("__name__", "?")
    return f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}"


def get_cpu_clock(thread: int) -> Callable[[], float]:
    """Return a function that reads the CPU time of a thread, or of the process on macOS."""
    if not hasattr(time, "pthread_getcpuclockid"):  # macOS
        return time.process_time
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime(clock)
