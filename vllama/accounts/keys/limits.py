"""Limits of a key: requests and tokens in a period, requests at once.

Rates are counted by a sliding window, which remembers the time of every admission: no period of
that length, wherever it begins, has more. A fixed window or a token bucket would let twice as many
pass around its edge. Tokens of a minute are counted so, too; those of a day or a month by the
calendar.

Nobody knows the tokens of an answer before it has ended. So each request reserves the most that it
can take, until its end. One that finds too little left waits until nothing else of the key runs:
so a key exceeds its tokens by no more than one answer.

A clock may jump. Times in the future count as now, and each day keeps its tokens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from msgspec import Struct

from vllama.accounts.keys.key import DAY_S, MONTH, ApiKey, format_count
from vllama.accounts.usage.entries import name_day
from vllama.base.clock import Clock
from vllama.base.errors import LimitReached

MINUTE_S = 60.0
_ENDS = {
    "min": ("the last minute", "each is available again a minute after its use"),
    "day": ("today", "the limit resets at midnight (UTC)"),
    MONTH: ("this month", "the limit resets on the first day of the month (UTC)"),
}

Before: TypeAlias = tuple[Mapping[str, int], Sequence[tuple[float, int]]]
"""What a key used before a restart: tokens by day; and of late by time, 0 for an admission."""
Size: TypeAlias = Callable[[], int]
"""Returns the most tokens that a request can take, as far as that is known now."""


class Window(Struct, frozen=True):
    """Remainder of one limit, and the seconds until all of it is available."""

    limit: int
    remaining: int
    reset_s: float


class Standing(Struct, frozen=True):
    """Remainders of a key's limits; None for no limit."""

    requests: Window | None = None
    tokens: Window | None = None


class SlidingWindow:
    """Usage of the last seconds: amounts with their Unix times, the oldest first."""

    def __init__(self) -> None:
        self._used: deque[tuple[float, int]] = deque()
        self.sum = 0

    def add(self, amount: int, time_s: float) -> None:
        """Count an amount."""
        self._used.append((time_s, amount))
        self.sum += amount

    def sort(self) -> None:
        """Put amounts that were added late in their places."""
        self._used = deque(sorted(self._used))

    def forget(self, now_s: float, period_s: float) -> None:
        """Forget what no longer counts. What is in the future came before the clock was set."""
        if self._used and self._used[-1][0] > now_s:
            self._used = deque((min(time_s, now_s), amount) for time_s, amount in self._used)
        while self._used and self._used[0][0] <= now_s - period_s:
            self.sum -= self._used.popleft()[1]

    def find_wait(self, limit: int, now_s: float, period_s: float) -> float:
        """Return the seconds until less than `limit` counts."""
        left = self.sum
        for time_s, amount in self._used:
            left -= amount
            if left < limit:
                return time_s + period_s - now_s
        return 0.0

    def find_reset(self, now_s: float, period_s: float) -> float:
        """Return the seconds until nothing counts."""
        return self._used[-1][0] + period_s - now_s if self._used else 0.0


@dataclass(slots=True)
class Use:
    """Usage of one key: recent requests and tokens, and the tokens of each day.

    Of the `running` requests, `active` ones have `reserved` tokens. Others wait at the `door`, one
    of them until some are `freed`, the rest for that one.
    """

    admitted: SlidingWindow = field(default_factory=SlidingWindow)
    spent: SlidingWindow = field(default_factory=SlidingWindow)
    days: dict[str, int] = field(default_factory=dict)
    running: int = 0
    active: int = 0
    reserved: int = 0
    door: asyncio.Lock = field(default_factory=asyncio.Lock)
    freed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, tokens: int, day: str) -> None:
        """Count tokens of a day."""
        self.days[day] = self.days.get(day, 0) + tokens

    def sum_tokens(self, period: str, now_s: float) -> int:
        """Return the tokens of the running period."""
        if period == "min":
            return self.spent.sum
        day = name_day(now_s)
        if period == MONTH:
            return sum(tokens for one, tokens in self.days.items() if one[:7] == day[:7])
        return self.days.get(day, 0)


class KeyLimits:
    """The limits of all keys; to be used in one event loop.

    Keys without limits are counted too, since they may be given some at any time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._uses: dict[str, Use] = {}

    def restore(self, before: Mapping[str, Before]) -> None:
        """Add the earlier usage of keys, by the identities of keys."""
        for identity, (days, recent) in before.items():
            use = self._uses.setdefault(identity, Use())
            for day, tokens in days.items():
                use.add(tokens, day)
            for time_s, tokens in recent:
                window = use.spent if tokens else use.admitted
                window.add(tokens or 1, time_s)
            use.admitted.sort()
            use.spent.sort()

    def admit(self, key: ApiKey, *, gives_way: bool = False) -> None:
        """Admit a request, for which `finish` has to be called once. Raises LimitReached.

        `gives_way`: a row of a batch, which ends as soon as another request comes; it does not
        count as one of the concurrent requests.
        """
        use, now_s = self._use_of(key)
        self._check_tokens(key, use, now_s)
        self._check_rate(key, use, now_s)
        if not gives_way and key.concurrent is not None and use.running >= key.concurrent:
            raise LimitReached(
                f"the key '{key.name}' is limited to {count_requests(key.concurrent)} at a time, "
                "and has reached that limit",
                retry_after_s=1.0,
                hint="wait until one of them has ended",
            )
        if key.rate is not None:
            use.admitted.add(1, now_s)
        use.running += not gives_way

    async def reserve(self, key: ApiKey, size: Size) -> int:
        """Reserve the tokens of an admitted request, once there is room; return how many.

        They are given back by `release`. Raises LimitReached if the tokens of the key were used up
        meanwhile.
        """
        use, _ = self._use_of(key)
        async with use.door:
            while True:
                self._check_tokens(key, *self._use_of(key))
                if (tokens := self._take(key, size)) is not None:
                    return tokens
                use.freed.clear()
                await use.freed.wait()

    def try_reserve(self, key: ApiKey, size: Size) -> int | None:
        """Reserve at once, without suspending; None if there is no room, or nothing is left."""
        use, _ = self._use_of(key)
        return None if use.door.locked() else self._take(key, size)

    def release(self, key: ApiKey, reserved: int) -> None:
        """Give reserved tokens back."""
        use, _ = self._use_of(key)
        use.active -= 1
        use.reserved -= reserved
        use.freed.set()

    def shrink(self, key: ApiKey, surplus: int) -> None:
        """Give back a part of the tokens that a request has reserved."""
        use, _ = self._use_of(key)
        use.reserved -= surplus
        use.freed.set()

    def finish(self, key: ApiKey, tokens: int, *, gives_way: bool = False) -> None:
        """Count a request of `key` that has ended, and the tokens that it took."""
        use, now_s = self._use_of(key)
        use.running -= not gives_way
        use.add(tokens, name_day(now_s))
        if tokens and key.tokens_period == "min":
            use.spent.add(tokens, now_s)

    def find_standing(self, key: ApiKey) -> Standing:
        """Return the remainder of the limits."""
        use, now_s = self._use_of(key)
        requests = tokens = None
        if key.rate is not None:
            left = max(0, key.rate.count - use.admitted.sum)
            reset_s = use.admitted.find_reset(now_s, key.rate.period_s)
            requests = Window(key.rate.count, left, reset_s)
        if key.tokens is not None:
            left = max(0, key.tokens - use.sum_tokens(key.tokens_period, now_s))
            reset_s = seconds_to_end(key.tokens_period, now_s)
            if key.tokens_period == "min":
                reset_s = use.spent.find_reset(now_s, MINUTE_S)
            tokens = Window(key.tokens, left, reset_s)
        return Standing(requests, tokens)

    def _use_of(self, key: ApiKey) -> tuple[Use, float]:
        """Return the usage of a key that still counts now, and the time."""
        use, now_s = self._uses.get(key.identity), self._clock.time()
        if use is None:
            use = self._uses[key.identity] = Use()
        use.admitted.forget(now_s, key.rate.period_s if key.rate is not None else 0.0)
        use.spent.forget(now_s, MINUTE_S)
        return use, now_s

    @staticmethod
    def _check_tokens(key: ApiKey, use: Use, now_s: float) -> None:
        if key.tokens is None or use.sum_tokens(key.tokens_period, now_s) < key.tokens:
            return
        again_s = seconds_to_end(key.tokens_period, now_s)
        if key.tokens_period == "min":
            again_s = use.spent.find_wait(key.tokens, now_s, MINUTE_S)
        when, hint = _ENDS[key.tokens_period]
        raise LimitReached(
            f"the key '{key.name}' has used its {format_count(key.tokens)} tokens of {when}",
            retry_after_s=again_s,
            hint=hint,
        )

    @staticmethod
    def _check_rate(key: ApiKey, use: Use, now_s: float) -> None:
        if key.rate is None or use.admitted.sum < key.rate.count:
            return
        raise LimitReached(
            f"the key '{key.name}' is limited to {count_requests(key.rate.count)} per "
            f"{key.rate.period}, and has reached that limit",
            retry_after_s=use.admitted.find_wait(key.rate.count, now_s, key.rate.period_s),
            hint="send fewer requests, or wait",
        )

    def _take(self, key: ApiKey, size: Size) -> int | None:
        """Reserve tokens if there is room, or if some are left and nothing else runs."""
        use, now_s = self._use_of(key)
        tokens = 0
        if key.tokens is not None:
            tokens = size()
            used = use.sum_tokens(key.tokens_period, now_s)
            if used + use.reserved + tokens > key.tokens and (use.active or used >= key.tokens):
                return None
        use.active += 1
        use.reserved += tokens
        return tokens


def count_requests(count: int) -> str:
    """Return a number of requests in words."""
    return "1 request" if count == 1 else f"{count} requests"


def seconds_to_end(period: str, time_s: float) -> float:
    """Return the time until the next month (UTC) begins, else the next day."""
    if period != MONTH:
        return DAY_S - time_s % DAY_S
    now = datetime.fromtimestamp(time_s, UTC)
    later = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=32)
    return (later.replace(day=1) - now).total_seconds()
