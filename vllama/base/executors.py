"""Threads for work that blocks: a bounded set for each purpose, so that none waits for another.

Six downloads that drip must not take the threads with which models are looked up, so there is no
common set (the linter refuses asyncio's default executor). What waits for a thread is bounded, too.
Threads start when they are needed, and never keep the process alive. They belong to the process,
not to a loop.

Work must not wait for other work of the same executor. What is costly in itself is done by the
processes of `chat.templates.jinja`.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from vllama.base.errors import QueueFull

P = ParamSpec("P")
T = TypeVar("T")


def post(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call `callback` in `loop` from another thread; do nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


class Job(Generic[T]):
    """One piece of work; `result` belongs to the loop that has started it."""

    def __init__(self, work: Callable[[], T], group: str = "") -> None:
        self.group = group
        self.waits = False  # for a thread
        self.result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._context, self._work = contextvars.copy_context(), work

    def do(self) -> None:
        """Do it in this thread, and tell the loop, if it still runs."""
        settle: Callable[[], None]
        try:
            settle = partial(self._settle, self.result.set_result, self._context.run(self._work))
        except BaseException as error:
            settle = partial(self._settle, self.result.set_exception, error)
        post(self.result.get_loop(), settle)
        del settle  # it has the error, whose traceback has this frame

    def _settle(self, settle: Callable[[Any], None], outcome: object) -> None:
        if not self.result.done():
            settle(outcome)


class Executor:
    """Up to `threads` threads for one purpose, and up to `most_waiting` jobs that wait for one.

    Of jobs with the same group at most `group_threads` run at once; the groups take turns.
    """

    def __init__(
        self, name: str, *, threads: int, most_waiting: float, group_threads: int | None = None
    ) -> None:
        self.name, self.running = name, 0
        self._most_threads, self._most_waiting = threads, most_waiting
        self._group_threads = group_threads or threads
        self._lock = threading.Lock()
        self._threads = 0
        self._groups: Counter[str] = Counter()  # of the running jobs
        self._begun: queue.SimpleQueue[Job[Any]] = queue.SimpleQueue()
        self._waiting: deque[Job[Any]] = deque()

    @property
    def waiting(self) -> int:
        """The number of jobs that wait for a thread."""
        return len(self._waiting)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `work`, called in a thread with the context of the caller.

        Raises QueueFull. If the caller is canceled, work that has not begun is dropped.
        """
        return await self.finish(self.start(partial(work, *args, **kwargs)))

    async def finish(self, job: Job[T]) -> T:
        """Wait for a job, which is dropped if the caller is canceled before it has begun."""
        try:
            return await job.result
        finally:
            self.withdraw(job)

    def start(self, work: Callable[[], T], group: str = "") -> Job[T]:
        """Run `work` in a thread, at once or in its turn. Raises QueueFull."""
        job = Job(work, group)
        with self._lock:
            if self._has_room(job):
                self._begin(job)
            elif self.waiting >= self._most_waiting:
                raise QueueFull(
                    f"server busy, please try again: {self.waiting} jobs wait for {self.name}"
                )
            else:
                job.waits = True
                self._waiting.append(job)
        return job

    def withdraw(self, job: Job[T]) -> bool:
        """Drop a job that still waits; return whether it did."""
        with self._lock:
            did, job.waits = job.waits, False
            if did:
                self._waiting.remove(job)
        return did

    def _has_room(self, job: Job[T]) -> bool:
        return self.running < self._most_threads and self._groups[job.group] < self._group_threads

    def _begin(self, job: Job[T]) -> None:
        job.waits = False
        self.running += 1
        self._groups[job.group] += 1
        self._begun.put(job)
        if self._threads < self.running:
            threading.Thread(target=self._serve, name=self.name, daemon=True).start()
            self._threads += 1

    def _serve(self) -> None:
        while True:
            job = self._begun.get()
            job.do()
            with self._lock:
                self._end(job)
            del job  # an idle thread keeps nothing alive

    def _end(self, job: Job[Any]) -> None:
        """Start the next job: of the groups that wait, the one with the fewest threads."""
        self.running -= 1
        self._groups[job.group] -= 1
        self._groups = +self._groups  # without those that have none
        following = min(self._waiting, key=lambda job: self._groups[job.group], default=None)
        if following is not None and self._has_room(following):
            self._waiting.remove(following)
            self._begin(following)


disk = Executor("disk", threads=8, most_waiting=1000)
"""Looks up what a request waits for: short, and never for the network."""
storage = Executor("storage", threads=16, most_waiting=1000)
"""Writes, hashes, copies and deletes models: may take minutes."""
codec = Executor("codec", threads=2, most_waiting=1000)
"""Takes milliseconds of CPU time: metrics, descriptions, vectors, compressed bodies."""
downloads = Executor("downloads", threads=32, most_waiting=1000, group_threads=16)
"""Pulls models; the group is the registry."""
web = Executor("web", threads=16, most_waiting=100)
"""Asks servers on the network for a short answer: searches, what the hub has."""
names = Executor("names", threads=16, most_waiting=float("inf"), group_threads=1)
"""Resolves the names of hosts; the group is the name, so that a slow one delays no other."""
upkeep = Executor("upkeep", threads=16, most_waiting=float("inf"))
"""Does the server's own work, which no client multiplies and which must not be refused."""

ALL = (disk, storage, codec, downloads, web, names, upkeep)
