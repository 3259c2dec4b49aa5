"""The limits of keys: no period has more requests, no day more tokens, than a key may have."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tests.loops import in_loop
from tests.manual_clock import ManualClock
from vllama.accounts.keys.group import Group
from vllama.accounts.keys.key import (
    DAY_S,
    ApiKey,
    Rate,
    parse_age,
    parse_count,
    parse_rate,
    parse_tokens,
)
from vllama.accounts.keys.limits import KeyLimits, Reservation, Size
from vllama.accounts.usage.entries import UsedBefore, name_day
from vllama.accounts.usage.money import UNIT, MoneyLimit, parse_budget
from vllama.base.errors import LimitReached

NOON_S = 20_000 * DAY_S + DAY_S / 2


def make_key(**limits) -> ApiKey:
    return ApiKey(name="ann", digest="", **limits)


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
    with pytest.raises(LimitReached, match="limited to 1 request at a time"):
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
    assert [str(parse_tokens(text)) for text in ("1M/day", "20k", "7/d")] == [
        *("1M/day", "20k/day", "7/day"),
    ]
    assert [str(parse_tokens(text)) for text in ("5/minute", "5/min", "2k/Month")] == [
        *("5/min", "5/min", "2k/month"),
    ]
    assert [parse_age(text) for text in ("30d", "12h", "2w", "90s")] == [
        *(30 * DAY_S, 12 * 3600, 14 * DAY_S, 90)
    ]
    assert parse_count("2.5k") == 2500
    for parse, text in (
        *((parse_tokens, "1M/h"), (parse_tokens, "1/s"), (parse_rate, "1/month")),
        *((parse_age, "30"), (parse_age, "0d")),
        *((parse_count, "9" * 400), (parse_count, "١٢"), (parse_age, "9" * 400 + "d")),
    ):
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
    with pytest.raises(LimitReached, match="2 requests at a time"):
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


def fixed(tokens: int) -> Size:
    return lambda: tokens


def take(limits: KeyLimits, key: ApiKey, tokens: int, price: int = 0) -> Reservation:
    """Reserve tokens at once, all of them."""
    made = limits.try_reserve(key, fixed(tokens), price)
    assert made is not None and {reserved for _, reserved, _ in made} == {tokens}
    return made


@pytest.mark.parametrize("period", ["min", "day", "month"])
@pytest.mark.parametrize("seed", range(10))
@in_loop
async def test_tokens_are_exceeded_by_one_answer_at_most(seed: int, period: str) -> None:
    """Any number at once, of any sizes, in any order of their ends; some say no size at all."""
    chance = random.Random(seed)
    limits = KeyLimits(ManualClock(NOON_S))
    key = make_key(tokens=1000, tokens_period=period)
    used, largest, refused, most_at_once, running = 0, 0, 0, 0, 0

    async def ask() -> None:
        nonlocal used, largest, refused, most_at_once, running
        most = chance.choice((5, 40, 120, 1 << 62))
        try:
            limits.admit(key)
        except LimitReached:
            refused += 1
            return
        try:
            reserved = await limits.reserve(key, fixed(most))
        except LimitReached:
            refused += 1
            limits.finish(key, 0)
            return
        running += 1
        most_at_once = max(most_at_once, running)
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        running -= 1
        tokens = chance.randrange(min(most, 300) + 1)
        used, largest = used + tokens, max(largest, tokens)
        limits.finish(key, tokens)
        limits.release(reserved)

    await asyncio.gather(*(ask() for _ in range(120)))
    assert 1000 <= used < 1000 + largest
    assert refused and most_at_once > 1 and running == 0
    assert limits._uses["ann"].reserved == limits._uses["ann"].active == 0


@in_loop
async def test_what_is_too_large_for_what_is_left_runs_alone() -> None:
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(tokens=100)
    for _ in range(4):
        limits.admit(key)
    first, second = take(limits, key, 50), take(limits, key, 50)
    assert limits.try_reserve(key, fixed(1)) is None
    large = asyncio.ensure_future(limits.reserve(key, fixed(500)))
    small = asyncio.ensure_future(limits.reserve(key, fixed(10)))
    await asyncio.sleep(0)
    limits.finish(key, 5)
    limits.release(first)
    await asyncio.sleep(0)
    assert not large.done() and not small.done(), "each in its turn"
    limits.finish(key, 5)
    limits.release(second)
    alone = await large
    assert not small.done()
    limits.shrink(alone, fixed(50))  # its model turns out to have a small context
    await small
    limits.finish(key, 90)
    limits.release(alone)
    with pytest.raises(LimitReached):
        limits.admit(key)


@in_loop
async def test_who_was_admitted_before_the_tokens_were_used_up_is_refused() -> None:
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(tokens=100)
    limits.admit(key)
    limits.admit(key)  # and its model is looked for
    limits.release(limits.try_reserve(key, fixed(150)) or [])
    limits.finish(key, 150)
    assert limits.try_reserve(key, fixed(1)) is None
    with pytest.raises(LimitReached):
        await limits.reserve(key, fixed(1))


@in_loop
async def test_who_leaves_while_waiting_for_tokens_lets_others_in() -> None:
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(tokens=100)
    for _ in range(4):
        limits.admit(key)
    first = take(limits, key, 60)
    waits = [asyncio.ensure_future(limits.reserve(key, fixed(60))) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.sleep(0)
    limits.finish(key, 60)
    limits.release(first)  # there is room for one beside none
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [wait.done() for wait in waits] == [True, True, False]
    limits.finish(key, 60)
    limits.release(await waits[1])
    with pytest.raises(LimitReached):
        await waits[2]
    assert limits._uses["ann"].reserved == limits._uses["ann"].active == 0


@in_loop
async def test_who_is_let_in_and_leaves_at_once_lets_others_in() -> None:
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(tokens=100)
    for _ in range(3):
        limits.admit(key)
    first = take(limits, key, 60)
    waits = [asyncio.ensure_future(limits.reserve(key, fixed(60))) for _ in range(2)]
    await asyncio.sleep(0)
    limits.finish(key, 60)
    limits.release(first)
    waits[0].cancel()  # in the same turn of the loop
    await asyncio.wait(waits)
    assert waits[0].cancelled() and waits[1].exception() is None


@in_loop
async def test_a_key_without_such_a_limit_never_waits() -> None:
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(rate=Rate(9, "s"))
    limits.admit(key)
    limits.admit(key)
    assert limits.try_reserve(key, fixed(1 << 62)) and limits.try_reserve(key, fixed(5))


@in_loop
async def test_the_tokens_of_a_minute_are_of_any_minute() -> None:
    clock = ManualClock(NOON_S)
    limits, key = KeyLimits(clock), make_key(tokens=100, tokens_period="min")
    for tokens, after_s in ((30, 20), (60, 20), (30, 5)):
        limits.admit(key)
        limits.finish(key, tokens)
        clock.advance(after_s)
    with pytest.raises(LimitReached, match="tokens of the last minute") as caught:
        limits.admit(key)
    assert caught.value.retry_after_s == 15  # then the first 30 do not count any more
    standing = limits.find_standing(key).tokens
    assert standing is not None and (standing.remaining, standing.reset_s) == (0, 55)
    clock.advance(15)
    limits.admit(key)
    limits.finish(key, 0)
    standing = limits.find_standing(key).tokens
    assert standing is not None and (standing.remaining, standing.reset_s) == (10, 40)
    clock.advance(60)
    standing = limits.find_standing(key).tokens
    assert standing is not None and (standing.remaining, standing.reset_s) == (100, 0)


@pytest.mark.parametrize(
    ("now", "left_s"),
    [
        ("2026-11-23T12:00:00", 7.5 * DAY_S),
        ("2026-12-31T23:59:00", 60),
        ("2028-02-01T00:00:00", 29 * DAY_S),
    ],
)
@in_loop
async def test_the_tokens_of_a_month(now: str, left_s: float) -> None:
    clock = ManualClock(datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp())
    limits, key = KeyLimits(clock), make_key(tokens=100, tokens_period="month")
    limits.restore({"ann": UsedBefore(tokens={f"{now[:8]}01": 60, "2026-10-31": 70})})
    limits.admit(key)
    limits.finish(key, 40)
    with pytest.raises(LimitReached, match="tokens of this month") as caught:
        limits.admit(key)
    standing = limits.find_standing(key).tokens
    assert standing is not None and standing.reset_s == caught.value.retry_after_s == left_s
    clock.advance(left_s)
    limits.admit(key)


@in_loop
async def test_what_was_used_before_a_restart_counts() -> None:
    clock = ManualClock(NOON_S)
    limits, key = KeyLimits(clock), make_key(tokens=100, rate=Rate(3, "min"))
    recent = [(NOON_S - 50, 0), (NOON_S - 1, 0)]
    limits.restore({"ann": UsedBefore(tokens={name_day(NOON_S): 99}, recent=recent)})
    limits.admit(key)
    with pytest.raises(LimitReached, match="3 requests per min"):
        limits.admit(key)
    clock.advance(11)
    limits.finish(key, 1)
    with pytest.raises(LimitReached, match="tokens of today"):
        limits.admit(key)
    by_minute = make_key(owner="b", tokens=100, tokens_period="min")
    recent = [(clock.time() - 59, 99), (clock.time() - 5, 1)]
    limits.restore({"b": UsedBefore(recent=recent)})
    with pytest.raises(LimitReached, match="tokens of the last minute") as caught:
        limits.admit(by_minute)
    assert caught.value.retry_after_s == 1


@pytest.mark.parametrize("ahead_s", [3600.0, 400 * DAY_S, 36_500 * DAY_S])
@in_loop
async def test_a_clock_that_was_ahead_locks_no_key(ahead_s: float) -> None:
    clock = ManualClock(NOON_S + ahead_s)
    limits = KeyLimits(clock)
    rated = make_key(owner="r", rate=Rate(5, "min"))
    by_minute = make_key(owner="m", tokens=10, tokens_period="min")
    for key in (rated, rated, rated, rated, rated, by_minute):
        limits.admit(key)
        limits.finish(key, 10)
    clock.advance(-ahead_s)
    for key in (rated, by_minute):
        with pytest.raises(LimitReached) as caught:
            limits.admit(key)
        assert 0 < caught.value.retry_after_s <= 60
    clock.advance(60)
    limits.admit(rated)
    limits.admit(by_minute)


@pytest.mark.parametrize("period", ["day", "month"])
@pytest.mark.parametrize("days", [1, -1, 400, -400])
@in_loop
async def test_a_day_back_and_forth_gives_no_tokens_anew(days: int, period: str) -> None:
    clock = ManualClock(NOON_S)
    limits, key = KeyLimits(clock), make_key(tokens=100, tokens_period=period)
    limits.admit(key)
    limits.finish(key, 100)
    for _ in range(3):
        clock.advance(days * DAY_S)
        with suppress(LimitReached):  # another day has tokens of its own, once
            limits.admit(key)
            limits.finish(key, 100)
        with pytest.raises(LimitReached):
            limits.admit(key)
        clock.advance(-days * DAY_S)
        with pytest.raises(LimitReached):
            limits.admit(key)


@in_loop
async def test_a_clock_that_is_back_before_all_days_has_limits_too() -> None:
    clock = ManualClock(NOON_S - 500 * DAY_S)
    limits, key = KeyLimits(clock), make_key(tokens=100)
    days = {name_day(NOON_S + n * DAY_S): 1 for n in range(200)}
    limits.restore({"ann": UsedBefore(tokens=days)})
    limits.admit(key)
    limits.finish(key, 100)
    with pytest.raises(LimitReached):
        limits.admit(key)


BUDGET = parse_budget("2/day")
GROUPS: list[tuple[str, Group, str]] = [
    ("rate", Group(name="team", rate=Rate(3, "min")), "3 requests per min"),
    ("concurrent", Group(name="team", concurrent=3), "3 requests at a time"),
    ("tokens", Group(name="team", tokens=Rate(30, "day")), "30 tokens of today"),
    ("minute", Group(name="team", tokens=Rate(30, "min")), "30 tokens of the last minute"),
    ("month", Group(name="team", tokens=Rate(30, "month")), "30 tokens of this month"),
    ("money", Group(name="team", budget=parse_budget("3/month")), "its budget of this month"),
]


@pytest.mark.parametrize(("kind", "group", "words"), GROUPS, ids=[kind for kind, _, _ in GROUPS])
@in_loop
async def test_keys_of_a_group_share_its_limits(kind: str, group: Group, words: str) -> None:
    limits = KeyLimits(ManualClock(NOON_S), lambda: (Group(name="other"), group))
    keys = [make_key(owner=str(number), group="team") for number in range(4)]
    free = [make_key(owner="free"), make_key(owner="other", group="other")]
    for key in (*keys[:3], *free):
        limits.admit(key)
        if kind != "concurrent":
            limits.finish(key, 10, UNIT)
    with pytest.raises(LimitReached, match=f"the group 'team' .*{words}"):
        limits.admit(keys[3])
    assert limits._uses["3"].running == 0, "nothing of a refused request is counted"
    for key in free:
        limits.admit(key)


@pytest.mark.parametrize("own", ["key", "group"])
@in_loop
async def test_the_limits_of_a_key_and_of_its_group_hold_both(own: str) -> None:
    few, many = Rate(10, "day"), Rate(99, "day")
    group = Group(name="team", tokens=many if own == "key" else few)
    limits = KeyLimits(ManualClock(NOON_S), lambda: [group])
    key = make_key(tokens=few.count if own == "key" else many.count, group="team")
    standing = limits.find_standing(key).tokens
    assert standing is not None and standing.limit == 10, "what is less is shown"
    limits.admit(key)
    limits.finish(key, 10)
    with pytest.raises(LimitReached, match=f"the {own} '"):
        limits.admit(key)


MODEL_LIMITS: list[tuple[str, dict[str, Any], int, str, float]] = [
    ("rate", {"model_rate": [("big", "3/min")]}, 3, "3 requests per min", 60),
    ("of a pattern", {"model_rate": [("b*", "2/h"), ("big", "9/h")]}, 2, "2 requests per h", 3600),
    ("tokens", {"model_tokens": [("big", "30/day")]}, 3, "30 tokens of today", DAY_S / 2),
    ("minute", {"model_tokens": [("BIG:latest", "25/min")]}, 3, "25 tokens of the last", 60),
    ("month", {"model_tokens": [("big", "10/month")]}, 1, "10 tokens of this month", 0),
]


@pytest.mark.parametrize("of", ["key", "group"])
@pytest.mark.parametrize(
    ("given", "allowed", "words", "again_s"),
    [case[1:] for case in MODEL_LIMITS],
    ids=[case[0] for case in MODEL_LIMITS],
)
@in_loop
async def test_a_limit_of_one_model(
    of: str, given: dict[str, Any], allowed: int, words: str, again_s: float
) -> None:
    read = {"model_rate": parse_rate, "model_tokens": parse_tokens}
    fields = {name: tuple((m, read[name](x)) for m, x in each) for name, each in given.items()}
    group = Group(name="team", **(fields if of == "group" else {}))
    limits = KeyLimits(ManualClock(NOON_S), lambda: [group])
    key = make_key(group="team", **(fields if of == "key" else {}))
    for _ in range(allowed):
        limits.admit(key)
        limits.admit(key, "big:latest")
        limits.finish(key, 10, model="big:latest")
    limits.admit(key)
    with pytest.raises(LimitReached, match=f"{of} '.*', for the model 'big:.*{words}") as caught:
        limits.admit(key, "big:latest")
    assert not again_s or caught.value.retry_after_s == again_s
    windows = limits.find_standing(key, "big:latest")
    assert {each.remaining for each in (windows.requests, windows.tokens) if each} == {0}
    limits.finish(key, 0)
    limits.admit(key)
    limits.admit(key, "other")  # which has limits of its own, where the pattern is one for it
    limits.finish(key, 10, model="other")
    assert limits._uses["ann"].running == limits._uses["group team"].running == 0


@in_loop
async def test_tokens_of_a_model_are_exceeded_by_one_response_at_most() -> None:
    limits = KeyLimits(ManualClock(NOON_S))
    key = make_key(model_tokens=(("big", Rate(100, "day")),))
    first = limits.try_reserve(key, fixed(80), model="big:latest")
    assert first is not None and limits.try_reserve(key, fixed(80), model="other") is not None
    waiting = asyncio.ensure_future(limits.reserve(key, fixed(80), model="big:latest"))
    await asyncio.sleep(0)
    assert not waiting.done() and limits.try_reserve(key, fixed(1), model="big:latest") is None
    limits.finish(key, 80, model="big:latest")
    limits.release(first)
    limits.release(await waiting)


@in_loop
async def test_a_budget_ends_with_its_period() -> None:
    clock = ManualClock(NOON_S)
    limits, key = KeyLimits(clock), make_key(budget=BUDGET)
    limits.restore({"ann": UsedBefore(spend={name_day(NOON_S): UNIT})})
    limits.admit(key)
    limits.finish(key, 5, UNIT - 1)
    limits.admit(key)
    limits.finish(key, 1, 1)
    with pytest.raises(LimitReached, match="its budget of today") as caught:
        limits.admit(key)
    assert caught.value.retry_after_s == DAY_S / 2 and "midnight" in (caught.value.hint or "")
    clock.advance(DAY_S / 2)
    limits.admit(key)


@pytest.mark.parametrize("seed", range(10))
@in_loop
async def test_a_budget_of_a_group_is_exceeded_by_one_answer_at_most(seed: int) -> None:
    chance = random.Random(seed)
    group = Group(name="team", budget=MoneyLimit(Decimal("0.001"), "day"))
    limits = KeyLimits(ManualClock(NOON_S), lambda: [group])
    keys = [make_key(owner=str(number), group="team", tokens=9000) for number in range(5)]
    price, most, spent, largest = 10**6, 10**9, 0, 0  # of a token, and of all

    async def ask(key: ApiKey) -> None:
        nonlocal spent, largest
        size = fixed(chance.choice((5, 40, 400, 1 << 40)))
        with suppress(LimitReached):
            limits.admit(key)
            reserved, tokens = limits.try_reserve(key, size, price), 0
            try:
                reserved = reserved or await limits.reserve(key, size, price)
                for _ in range(chance.randrange(5)):
                    await asyncio.sleep(0)
                limits.shrink(reserved, fixed(300))
                tokens = chance.randrange(min(size(), 300) + 1)
            finally:
                limits.finish(key, tokens, tokens * price)
                limits.release(reserved or [])
                spent, largest = spent + tokens * price, max(largest, tokens * price)

    tasks = [asyncio.ensure_future(ask(chance.choice(keys))) for _ in range(200)]
    await asyncio.sleep(0)
    for task in chance.sample(tasks, 20):
        task.cancel()
    await asyncio.wait(tasks)
    assert most <= spent < most + largest
    for use in limits._uses.values():
        assert use.reserved == use.pledged == use.active == use.running == 0


@pytest.mark.parametrize(
    ("limits_of", "shares", "warnings"),
    [
        ({"tokens": 100}, (79, 1, 5), ["the key 'ann' has used 80 % of its 100 tokens of today"]),
        ({"tokens": 100}, (10, 900), ["the key 'ann' has used 80 % of its 100 tokens of today"]),
        ({"tokens": 100, "tokens_period": "min"}, (90,), []),
        (
            {"model_tokens": (("m", Rate(100, "day")),)},
            (79, 1),
            ["the key 'ann', for the model 'm', has used 80 % of its 100 tokens of today"],
        ),
        ({"budget": BUDGET}, (80, 81), ["the key 'ann' has used 80 % of its budget of today"]),
        ({}, (1000,), []),
    ],
)
@in_loop
async def test_eighty_percent_is_said_once(
    limits_of: dict, shares: tuple[int, ...], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    limits, key = KeyLimits(ManualClock(NOON_S)), make_key(**limits_of)
    for tokens in shares:
        limits.admit(key)
        limits.finish(key, tokens, tokens * UNIT // 100, "m")
    assert [record.getMessage() for record in caplog.records] == warnings
