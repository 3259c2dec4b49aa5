"""The limits of keys: no period has more requests, no day more tokens, than a key may have."""

from __future__ import annotations

import asyncio
import functools
import random

import msgspec
import pytest

from vllama.clock import ManualClock
from vllama.errors import LimitReached
from vllama.keys.amounts import DAY_S, Rate, parse_age, parse_count, parse_daily_tokens, parse_rate
from vllama.keys.key import Key
from vllama.keys.limits import KeyLimits, name_day

NOON_S = 20_000 * DAY_S + DAY_S / 2


def in_loop(test):
    """Run a test in an event loop, in which the limits are used."""

    @functools.wraps(test)
    def run(*args, **named):
        asyncio.run(test(*args, **named))

    return run


def make_key(**limits) -> Key:
    return Key(name="ann", digest="", **limits)


@pytest.mark.parametrize(
    ("text", "count", "period_s"),
    [
        ("60/min", 60, 60),
        ("60/minute", 60, 60),
        (" 5 / s ", 5, 1),
        ("1k/h", 1000, 3600),
        ("1.5k/day", 1500, DAY_S),
        ("2/d", 2, DAY_S),
    ],
)
def test_rates(text: str, count: int, period_s: float) -> None:
    rate = parse_rate(text)
    assert (rate.count, rate.period_s) == (count, period_s)
    assert parse_rate(str(rate)) == rate


@pytest.mark.parametrize(
    "text", ["", "60", "/min", "0/min", "-1/min", "60/month", "x/min", "0.2/s"]
)
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rate(text)


@in_loop
async def test_one_request_is_no_plural() -> None:
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(concurrent=1)
    limits.admit(key)
    with pytest.raises(LimitReached, match="may have 1 request at once"):
        limits.admit(key)


@in_loop
async def test_a_new_key_inherits_nothing_of_an_old_one_of_its_name() -> None:
    limits = KeyLimits(ManualClock(NOON_S))
    old = make_key(owner="1", tokens=5, rate=Rate(1, "h"), concurrent=1)
    limits.admit(old)
    limits.finish(old, 5)
    with pytest.raises(LimitReached):
        limits.admit(old)
    new = msgspec.structs.replace(old, owner="2")
    limits.admit(new)
    assert limits.find_standing(old).tokens != limits.find_standing(new).tokens


def test_other_amounts() -> None:
    assert [parse_daily_tokens(text) for text in ("1M/day", "20k", "7/d")] == [1_000_000, 20_000, 7]
    assert [parse_age(text) for text in ("30d", "12h", "2w", "90s")] == [
        *(30 * DAY_S, 12 * 3600, 14 * DAY_S, 90)
    ]
    assert parse_count("2.5k") == 2500
    for parse, text in ((parse_daily_tokens, "1M/h"), (parse_age, "30"), (parse_age, "0d")):
        with pytest.raises(ValueError):
            parse(text)


@in_loop
async def test_no_period_has_more_requests_than_the_rate() -> None:
    clock, chance = ManualClock(NOON_S), random.Random(1)
    limits, key = KeyLimits(clock), make_key(rate=Rate(7, "min"))
    admitted: list[float] = []
    for _ in range(3000):
        clock.advance(chance.choice((0.0, 0.1, 3.0, 20.0)))
        try:
            limits.admit(key)
        except LimitReached as error:
            assert 0 < error.retry_after_s <= 60
            clock.advance(error.retry_after_s)  # which is enough, and no more than needed
            limits.admit(key)
        limits.finish(key, 0)
        admitted.append(clock.time())
    for first, last in zip(admitted, admitted[7:], strict=False):
        assert last - first >= 60 - 1e-6


@in_loop
async def test_requests_at_once() -> None:
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(concurrent=2)
    limits.admit(key)
    limits.admit(key)
    with pytest.raises(LimitReached, match="2 requests at once"):
        limits.admit(key)
    limits.finish(key, 5)
    limits.admit(key)


@in_loop
async def test_the_tokens_of_a_day() -> None:
    clock = ManualClock(NOON_S)
    limits, key = KeyLimits(clock), make_key(tokens=100)
    limits.admit(key)
    limits.finish(key, 99)
    limits.admit(key)
    limits.finish(key, 40)
    with pytest.raises(LimitReached) as caught:
        limits.admit(key)
    assert caught.value.retry_after_s == DAY_S / 2
    standing = limits.find_standing(key).tokens
    assert standing is not None and (standing.limit, standing.remaining) == (100, 0)
    clock.advance(DAY_S / 2)
    limits.admit(key)


@pytest.mark.parametrize("seed", range(20))
@in_loop
async def test_tokens_are_exceeded_by_one_answer_at_most(seed: int) -> None:
    """Answers of up to a known size, any number at once, in any order of their ends."""
    chance = random.Random(seed)
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(tokens=1000)
    used, largest, refused, most_at_once, running = 0, 90, 0, 0, 0

    async def ask() -> None:
        nonlocal used, refused, running, most_at_once
        try:
            if (turn := limits.admit(key)) is not None:
                await limits.wait(key, turn)
        except LimitReached:
            refused += 1
            return
        running += 1
        most_at_once = max(most_at_once, running)
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        running -= 1
        tokens = largest if not used else chance.randrange(1, largest + 1)
        used += tokens
        limits.finish(key, tokens)

    await asyncio.gather(*(ask() for _ in range(60)))
    assert 1000 <= used < 1000 + largest
    assert refused and most_at_once > 1


@in_loop
async def test_who_leaves_while_waiting_for_tokens_lets_others_in() -> None:
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(tokens=100)
    limits.admit(key)
    turns = [limits.admit(key) for _ in range(3)]
    assert None not in turns
    waits = [asyncio.ensure_future(limits.wait(key, turn)) for turn in turns if turn is not None]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.sleep(0)
    limits.finish(key, 60)  # there is room for one beside none
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [wait.done() for wait in waits] == [True, True, False]
    waits[1].cancel()  # too late: it has been let in
    limits.finish(key, 60)
    with pytest.raises(LimitReached):
        await waits[2]
    assert await asyncio.gather(*waits[:2], return_exceptions=True)


@in_loop
async def test_who_is_let_in_and_leaves_at_once_lets_others_in() -> None:
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(tokens=100)
    limits.admit(key)
    first, second = limits.admit(key), limits.admit(key)
    assert first is not None and second is not None
    waits = [asyncio.ensure_future(limits.wait(key, turn)) for turn in (first, second)]
    await asyncio.sleep(0)
    limits.finish(key, 60)
    waits[0].cancel()  # in the same turn of the loop
    await asyncio.wait(waits)
    assert waits[0].cancelled() and waits[1].exception() is None


@in_loop
async def test_what_was_used_before_a_restart_counts() -> None:
    clock = ManualClock(NOON_S)
    limits, key = KeyLimits(clock), make_key(tokens=100, rate=Rate(3, "min"))
    limits.restore(name_day(NOON_S), {"ann": 99}, {"ann": [NOON_S - 50, NOON_S - 1]})
    limits.admit(key)
    with pytest.raises(LimitReached, match="3 requests per min"):
        limits.admit(key)
    clock.advance(11)
    limits.finish(key, 1)
    with pytest.raises(LimitReached, match="tokens of today"):
        limits.admit(key)
