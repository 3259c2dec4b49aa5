"""Work for a client that may leave: what it has got is returned or given back, never lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.loops import in_loop
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import ClientGone


class Client:
    """A client that leaves when the test says so."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.given: list[str] = []
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        request: Any = SimpleNamespace(wait_for_disconnect=self.left.wait)
        self.task = asyncio.create_task(unless_gone(request, self.work(), self.given.append))

    async def work(self) -> str:
        return await self.ready


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("steps", range(6))
@in_loop
async def test_a_result_is_returned_or_given_back_whenever_the_task_is_cancelled(
    steps: int,
) -> None:
    client = Client()
    await settle()
    client.ready.set_result("a lease")
    for _ in range(steps):
        await asyncio.sleep(0)
    client.task.cancel()
    try:
        kept = [await client.task]
    except asyncio.CancelledError:
        kept = []
    assert [*kept, *client.given] in (["a lease"], [])
    if not kept and not client.given:
        assert not steps  # the work itself was canceled


@in_loop
async def test_work_is_cancelled_when_the_client_leaves() -> None:
    client = Client()
    await settle()
    client.left.set()
    with pytest.raises(ClientGone):
        await client.task
    assert client.ready.cancelled() and not client.given


@in_loop
async def test_a_result_that_comes_in_time_is_not_given_back() -> None:
    client = Client()
    client.ready.set_result("a lease")
    assert await client.task == "a lease"
    assert not client.given
