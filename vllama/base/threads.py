"""Threads of their own for work that may hang: none of them keeps the process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def begin(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call `work` in a new thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=getattr(work, "__name__", "work"), daemon=True).start()
    return future


def in_parallel(
    work: Callable[[S], T], items: Sequence[S], threads: int, failed: threading.Event | None = None
) -> list[T]:
    """Return the results of `work` for each item, in up to `threads` new threads; blocks.

    Raises the first error; `failed` is then set, so that the others can end.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    places = iter(range(len(items)))  # all threads take from it
    failed = failed or threading.Event()

    def take() -> None:
        for place in places:
            try:
                results[place] = work(items[place])
            except BaseException as error:
                errors.append(error)
                failed.set()
            if failed.is_set():
                return

    try:
        wait([begin(take) for _ in items[:threads]])
    except BaseException:  # Ctrl-C in this thread
        failed.set()
        raise
    if errors:
        raise errors[0]
    return [results[place] for place in range(len(items))]


@contextmanager
def ended_after(limit_s: float, end: Callable[[], object]) -> Iterator[None]:
    """Make another thread call `end` if this takes longer, however steadily bytes drip."""
    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
