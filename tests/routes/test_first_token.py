"""How long a target may take until its first token."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from vllama.routes.first_token import ServerDown, TooSlow, first_token_in_time


@pytest.mark.parametrize(("goes_down", "error"), [(True, ServerDown), (False, TooSlow)])
def test_a_target_is_called_slow_only_if_its_time_is_over(goes_down: bool, error: type) -> None:
    running = SimpleNamespace(has_begun=False, waits_for_tokens=False, expects_no_tokens=False)

    async def wait() -> None:
        async with first_token_in_time(running, lambda: goes_down) as begin:  # type: ignore[arg-type]
            begin(3600.0 if goes_down else 0.01)
            await asyncio.Event().wait()

    with pytest.raises(error):
        asyncio.run(wait())


@pytest.mark.parametrize("reason", ["waits_for_tokens", "expects_no_tokens"])
def test_what_gives_no_tokens_yet_is_no_slow_target(reason: str) -> None:
    looks = iter([True] * 5)  # it holds that long

    class Waiting:
        has_begun = False

        def __getattr__(self, name: str) -> bool:
            return name == reason and next(looks, False)

    async def wait() -> None:
        async with first_token_in_time(Waiting()) as begin:  # type: ignore[arg-type]
            begin(0.01)
            await asyncio.Event().wait()

    with pytest.raises(TooSlow):
        asyncio.run(wait())
    assert next(looks, None) is None


def test_the_time_begins_anew_while_the_engine_is_at_work_for_others() -> None:
    running = SimpleNamespace(has_begun=False, waits_for_tokens=False, expects_no_tokens=False)
    tokens = iter(range(5))

    async def wait() -> None:
        progress = lambda: next(tokens, None)  # noqa: E731
        async with first_token_in_time(running, progress=progress) as begin:  # type: ignore[arg-type]
            begin(0.01)
            await asyncio.Event().wait()

    with pytest.raises(TooSlow):
        asyncio.run(wait())
    assert next(tokens, None) is None
