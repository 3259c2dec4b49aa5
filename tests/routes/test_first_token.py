"""How long a target may take until its first token."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from vllama.routes.first_token import ServerDown, TooSlow, compute_limit, first_token_in_time


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


@pytest.mark.parametrize(
    ("context_length", "tokens_per_s", "limit_s"),
    [
        (4096, None, 600),
        (8192, None, 600),
        (131_072, None, 9600),
        (131_072, 1000, 600),  # four times 131 s
        (131_072, 100, 5243),
        (131_072, 10, 9600),  # no longer than without a measurement
        (4096, 1, 600),
    ],
)
def test_a_long_context_has_the_time_that_its_prompt_needs(
    context_length: int, tokens_per_s: float | None, limit_s: int
) -> None:
    assert round(compute_limit(600, context_length, tokens_per_s)) == limit_s
