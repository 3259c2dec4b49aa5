"""Downloads that clients share, with functions of the test's making that run in real threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllama.base.errors import SourceError
from vllama.models.types import Bundle, Format, Progress, PullEvent
from vllama.net.http.request import ClientGone, Request
from vllama.observe.metrics.server_metrics import Metrics
from vllama.routes.ollama.progress import stream_pull
from vllama.routes.pulls import Pull, Pulls

LIMIT_S = 240.0
NAME = "hf.co/org/repo:Q8_0"
BUNDLE = Bundle(
    name=NAME,
    store="hub",
    format=Format.GGUF,
    path=Path("/m.gguf"),
    files=(Path("/m.gguf"),),
    size_bytes=100,
    digest="d",
    modified_s=0.0,
)


class Download:
    """A download of two files that goes on when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = threading.Event()
        self.starts = 0
        self.stopped = False
        self._error = error

    def __call__(self, progress: Progress, cancel: threading.Event) -> Bundle:
        self.starts += 1
        progress(PullEvent(status="pulling manifest"))
        for digest in ("a", "b"):
            progress(
                PullEvent(
                    status=f"pulling {digest}", digest=digest, total_bytes=50, completed_bytes=20
                )
            )
        while not self.go.wait(0.005):
            if cancel.is_set():
                self.stopped = True
                raise SourceError("cancelled")
        if self._error:
            raise self._error
        progress(PullEvent(status="success"))
        return BUNDLE


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), LIMIT_S))  # type: ignore[arg-type]

    return run


class Follower:
    """A client: what it was told, and the task in which it waits."""

    def __init__(self, pull: Pull) -> None:
        self.told: list[str] = []
        self.task = asyncio.ensure_future(pull.follow(self._tell))

    async def _tell(self, event: PullEvent) -> None:
        self.told.append(event.status)


async def reach(happened: Callable[[], object]) -> None:
    while not happened():  # noqa: ASYNC110 (a thread does it)
        await asyncio.sleep(0.001)


WHOLE = ["pulling manifest", "pulling a", "pulling b"]


@in_loop
async def test_clients_join_one_download() -> None:
    pulls, download = Pulls(Metrics()), Download()
    first = Follower(pulls.join("hf.co/org/repo:q8_0", download))
    await reach(lambda: first.told == WHOLE)
    second = Follower(pulls.join(NAME, download))
    # who joins is told how far it is
    await reach(lambda: second.told == WHOLE)
    (row,) = pulls.list_rows()
    assert (row.name, row.status, row.completed, row.total) == (NAME, "pulling b", 40, 100)
    assert row.ended_at is None
    first.task.cancel()
    await asyncio.wait({first.task})
    download.go.set()
    assert await second.task is BUNDLE
    assert second.told[-1] == "success" and download.starts == 1
    (row,) = pulls.list_rows()
    assert row.status == "success" and row.ended_at and row.error is None
    assert pulls.find(NAME) is None


@in_loop
async def test_the_last_client_that_leaves_stops_it() -> None:
    pulls, download = Pulls(Metrics()), Download()
    followers = [Follower(pulls.join(NAME, download)) for _ in range(2)]
    await reach(lambda: all(one.told == WHOLE for one in followers))
    for one in followers:
        assert not download.stopped
        one.task.cancel()
        await asyncio.wait({one.task})
    assert download.stopped
    assert pulls.list_rows()[0].status == "cancelled"
    # the next one starts anew
    again = Follower(pulls.join(NAME, download))
    download.go.set()
    assert await again.task is BUNDLE and download.starts == 2


@in_loop
async def test_one_in_the_background_goes_on_without_clients() -> None:
    pulls, download = Pulls(Metrics()), Download()
    pulls.join(NAME, download).background = True
    follower = Follower(pulls.join(NAME, download))
    await reach(lambda: follower.told == WHOLE)
    follower.task.cancel()
    await asyncio.wait({follower.task})
    assert not download.stopped
    pull = pulls.find("hf.co/org/repo:Q8_0")
    assert pull
    pull.cancel()
    await reach(lambda: pulls.list_rows()[0].status == "cancelled")
    assert download.stopped


@in_loop
async def test_a_failure_is_told_to_all_and_kept() -> None:
    pulls, download = (
        Pulls(Metrics()),
        Download(SourceError("the disk is on fire", hint="call somebody")),
    )
    followers = [Follower(pulls.join(NAME, download)) for _ in range(2)]
    download.go.set()
    for one in followers:
        with pytest.raises(SourceError, match="on fire"):
            await one.task
    (row,) = pulls.list_rows()
    assert (row.status, row.error) == ("failed", "the disk is on fire; call somebody")


@in_loop
async def test_only_the_last_that_ended_are_kept() -> None:
    pulls, download = Pulls(Metrics()), Download()
    download.go.set()
    for number in range(30):
        await Follower(pulls.join(f"hf.co/org/repo{number}:Q8_0", download)).task
    assert [row.name for row in pulls.list_rows()] == [
        f"hf.co/org/repo{number}:Q8_0" for number in range(20, 30)
    ]


@in_loop
async def test_one_that_has_ended_before_it_is_followed_is_not_stopped() -> None:
    metrics = Metrics()
    pulls, download = Pulls(metrics), Download()
    download.go.set()
    pull = pulls.join(NAME, download)
    time.sleep(0.1)  # noqa: ASYNC251 (it ends, and this loop does not know yet)
    assert await Follower(pull).task is BUNDLE
    await reach(lambda: not pulls.find(NAME))
    assert not metrics.downloads.values[("cancelled",)]
    assert pulls.list_rows()[0].status == "success"


@in_loop
async def test_what_has_arrived_is_counted_and_how_downloads_end() -> None:
    metrics = Metrics()
    pulls = Pulls(metrics)

    def download(progress: Progress, cancel: threading.Event) -> Bundle:
        for digest, done in (("here", 70), ("part", 30), ("part", 60), ("part", 100)):
            progress(PullEvent(status="x", digest=digest, total_bytes=100, completed_bytes=done))
        return BUNDLE

    assert await Follower(pulls.join(NAME, download)).task is BUNDLE
    # neither the file that was here nor the part that was left by an earlier download
    assert metrics.download_bytes.values[()] == 70
    failing = Download(SourceError("the disk is on fire"))
    failing.go.set()
    with pytest.raises(SourceError):
        await Follower(pulls.join(NAME, failing)).task
    pull = pulls.join(NAME, Download())
    follower = Follower(pull)
    await reach(lambda: follower.told == WHOLE)
    follower.task.cancel()
    await asyncio.wait({follower.task})
    assert metrics.downloads.values == {("ok",): 1, ("error",): 1, ("cancelled",): 1}


async def join_late(turns: int) -> None:
    """Join `turns` of the loop after the last client has left."""
    pulls, work = Pulls(Metrics()), Download()
    joins = SimpleNamespace(join=lambda name, _, insecure: pulls.join(name, work))
    gateway: Any = SimpleNamespace(pulls=joins)
    first, second = (Request.without_socket("/api/pull", b"{}", "test") for _ in range(2))
    told = []

    async def tell(event: PullEvent) -> None:
        told.append(event)

    leaving = asyncio.create_task(stream_pull(gateway, first, NAME, tell))
    await reach(lambda: told)
    first.note_disconnect()
    for _ in range(turns):
        await asyncio.sleep(0)
    joining = asyncio.create_task(stream_pull(gateway, second, NAME, tell))
    with pytest.raises(ClientGone):
        await leaving
    work.go.set()
    assert await joining == BUNDLE


@in_loop
async def test_a_client_that_joins_as_the_last_one_leaves() -> None:
    for turns in range(8):
        await join_late(turns)
