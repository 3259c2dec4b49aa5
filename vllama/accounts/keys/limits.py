"""Limits of a key: requests and tokens in a period, requests at once.

Rates are counted by a sliding window, which remembers the time of every admission: no period of
that length, wherever it begins, has more. A fixed window or a token bucket would let twice as many
pass around its edge. Tokens of a minute are counted so, too; those of a day or a month by the
calendar.

Nobody knows the tokens of an answer before it has ended. So each request reserves the most that it
can take, until its end. One that finds too little left waits until nothing else of the key runs:
so a key exceeds its tokens by no more than one answer. With prices, the same holds for budgets.

A clock may jump. Times in the future count as now, and each day keeps its tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from vllama.accounts.keys.group import Group
from vllama.accounts.keys.key import DAY_S, MONTH, ApiKey, Rate, format_count, matches
from vllama.accounts.usage.entries import UsedBefore, identify_model, name_day
from vllama.accounts.usage.money import UNIT
from vllama.base.clock import Clock
from vllama.base.errors import LimitReached

log = logging.getLogger(__name__)

MINUTE_S = 60.0
WARN_AT = 80  # percent
_ENDS = {
    "min": ("the last minute", "each is available again a minute after its use"),
    "day": ("today", "the limit resets at midnight (UTC)"),
    MONTH: ("this month", "the limit resets on the first day of the month (UTC)"),
}


class ModelLimit(NamedTuple):
    """The limits of a key or group for one model."""

    identity: str
    title: str
    rate: Rate | None
    token_limit: Rate | None
    concurrent: None = None
    budget: None = None


def limit_model(owner: ApiKey | Group, model: str) -> ModelLimit:
    """Return the limits for a model; of several patterns the first one holds."""
    rate, tokens = (
        next((limit for pattern, limit in limits if matches(pattern, model)), None)
        for limits in (owner.model_rate, owner.model_tokens)
    )
    title = f"{owner.title}, for the model '{model}',"
    return ModelLimit(identify_model(owner.identity, model), title, rate, tokens)


Limited: TypeAlias = ApiKey | Group | ModelLimit
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


class Quota(NamedTuple):
    """A limit of tokens or money in a period, and how much of it is used and reserved."""

    limit: int
    period: str
    used: int
    reserved: int
    words: str
    is_money: bool = False


@dataclass(slots=True)
class Use:
    """Usage of a key or group: recent requests and tokens, and tokens and spend of each day.

    Of the `running` requests, `active` ones have `reserved` tokens, which cost up to `pledged`.
    Others wait at the `door`, one of them until some are `freed`, the rest for that one.
    """

    admitted: SlidingWindow = field(default_factory=SlidingWindow)
    recent: SlidingWindow = field(default_factory=SlidingWindow)
    tokens: Counter[str] = field(default_factory=Counter)
    spend: Counter[str] = field(default_factory=Counter)
    running: int = 0
    active: int = 0
    reserved: int = 0
    pledged: int = 0
    door: asyncio.Lock = field(default_factory=asyncio.Lock)
    freed: asyncio.Event = field(default_factory=asyncio.Event)

    def hold(self, tokens: int, price: int, active: int = 0) -> None:
        """Reserve tokens, or give them back."""
        self.reserved += tokens
        self.pledged += tokens * price
        self.active += active
        self.freed.set()

    def list_quotas(self, limited: Limited, now_s: float) -> Iterator[Quota]:
        """Yield the limits of tokens and money."""
        if (limit := limited.token_limit) is not None:
            is_recent = limit.period == "min"
            used = self.recent.sum if is_recent else sum_period(self.tokens, limit.period, now_s)
            words = f"{format_count(limit.count)} tokens"
            yield Quota(limit.count, limit.period, used, self.reserved, words)
        if (budget := limited.budget) is not None:
            used = sum_period(self.spend, budget.period, now_s)
            most = int(budget.amount * UNIT)
            yield Quota(most, budget.period, used, self.pledged, "budget", is_money=True)


Reservation: TypeAlias = list[tuple[Use, int, int]]
"""Tokens that a request has reserved of its key and its group, with the highest price of one."""


class KeyLimits:
    """The limits of all keys and groups; to be used in one event loop.

    Keys without limits are counted too, since they may be given some at any time.
    """

    def __init__(self, clock: Clock, list_groups: Callable[[], Iterable[Group]] = tuple) -> None:
        self.clock = clock
        self._list_groups = list_groups
        self._uses: dict[str, Use] = {}

    def restore(self, before: Mapping[str, UsedBefore]) -> None:
        """Add the earlier usage of keys and groups, by their identities."""
        for identity, earlier in before.items():
            use = self._uses.setdefault(identity, Use())
            use.tokens.update(earlier.tokens)
            use.spend.update(earlier.spend)
            for time_s, tokens in earlier.recent:
                window = use.recent if tokens else use.admitted
                window.add(tokens or 1, time_s)
            use.admitted.sort()
            use.recent.sort()

    def list_owners(self, key: ApiKey) -> tuple[ApiKey | Group, ...]:
        """Return the key, and its group if it has one; a group without a table has no limits."""
        if not (name := key.group):
            return (key,)
        found = (group for group in self._list_groups() if group.name == name)
        return key, next(found, Group(name=name))

    def list_new(self, key: ApiKey, model: str) -> tuple[Limited, ...]:
        """Return those whose limits hold as soon as the model is known; "": before that."""
        owners = self.list_owners(key)
        limited = (one for one in owners if one.model_rate or one.model_tokens)
        return tuple(limit_model(one, model) for one in limited) if model else owners

    def list_limited(self, key: ApiKey, model: str) -> tuple[Limited, ...]:
        """Return all whose limits hold."""
        return (*self.list_owners(key), *(self.list_new(key, model) if model else ()))

    def admit(self, key: ApiKey, model: str = "", *, gives_way: bool = False) -> None:
        """Admit a request, for which `finish` has to be called once; later also to its model.

        Raises LimitReached. `gives_way`: a row of a batch, which ends as soon as another request
        comes; it does not count as one of the concurrent requests.
        """
        limited = [(one, *self._use_of(one)) for one in self.list_new(key, model)]
        for one, use, now_s in limited:
            self._check_quotas(one, use, now_s)
            self._check_rate(one, use, now_s)
            if not gives_way and one.concurrent is not None and use.running >= one.concurrent:
                raise LimitReached(
                    f"{one.title} is limited to {count_requests(one.concurrent)} at a time, "
                    "and has reached that limit",
                    retry_after_s=1.0,
                    hint="wait until one of them has ended",
                )
        for one, use, now_s in limited:
            if one.rate is not None:
                use.admitted.add(1, now_s)
            use.running += not (gives_way or model)

    async def reserve(
        self, key: ApiKey, size: Size, price: int = 0, model: str = ""
    ) -> Reservation:
        """Reserve the tokens of an admitted request, once there is room; return what is reserved.

        `price` is the highest of a token. What is reserved is given back by `release`. Raises
        LimitReached if the tokens or the budget were used up meanwhile.
        """
        made: Reservation = []
        try:
            for one in self.list_limited(key, model):  # in one order: no two wait for each other
                use, _ = self._use_of(one)
                async with use.door:
                    self._check_quotas(one, *self._use_of(one))
                    while (reserved := self._take(one, size, price)) is None:
                        use.freed.clear()
                        await use.freed.wait()
                        self._check_quotas(one, *self._use_of(one))
                made.append(reserved)
        except BaseException:
            self.release(made)
            raise
        return made

    def try_reserve(
        self, key: ApiKey, size: Size, price: int = 0, model: str = ""
    ) -> Reservation | None:
        """Reserve at once, without suspending; None if there is no room, or nothing is left."""
        made: Reservation = []
        for one in self.list_limited(key, model):
            is_queued = self._use_of(one)[0].door.locked()
            if is_queued or (reserved := self._take(one, size, price)) is None:
                self.release(made)
                return None
            made.append(reserved)
        return made

    @staticmethod
    def release(reservation: Reservation) -> None:
        """Give back what is reserved."""
        for use, tokens, price in reservation:
            use.hold(-tokens, price, -1)

    @staticmethod
    def shrink(reservation: Reservation, size: Size) -> None:
        """Give back what a request cannot take after all."""
        for place, (use, tokens, price) in enumerate(reservation):
            if tokens and (least := size()) < tokens:
                use.hold(least - tokens, price)
                reservation[place] = use, least, price

    def finish(
        self, key: ApiKey, tokens: int, spend: int = 0, model: str = "", *, gives_way: bool = False
    ) -> None:
        """Count a request of `key` that has ended, the tokens that it took, and their price."""
        owners = self.list_owners(key)
        for owner in owners:
            self._use_of(owner)[0].running -= not gives_way
        for one in (*owners, *(limit_model(each, model) for each in owners if model)):
            use, now_s = self._use_of(one)
            use.tokens[name_day(now_s)] += tokens
            use.spend[name_day(now_s)] += spend
            if tokens and one.token_limit is not None and one.token_limit.period == "min":
                use.recent.add(tokens, now_s)
            for limit, period, used, _, words, is_money in use.list_quotas(one, now_s):
                before = used - (spend if is_money else tokens)
                if period != "min" and before * 100 < limit * WARN_AT <= used * 100:
                    what = f"{words} of {_ENDS[period][0]}"
                    log.warning("%s has used %d %% of its %s", one.title, WARN_AT, what)

    def find_standing(self, key: ApiKey, model: str = "") -> Standing:
        """Return the remainder of the limits: the smallest one of key, group and model."""
        found: list[list[Window]] = [[], []]
        for one in self.list_limited(key, model):
            use, now_s = self._use_of(one)
            if one.rate is not None:
                left = max(0, one.rate.count - use.admitted.sum)
                reset_s = use.admitted.find_reset(now_s, one.rate.period_s)
                found[0].append(Window(one.rate.count, left, reset_s))
            for limit, period, used, _, _, is_money in use.list_quotas(one, now_s):
                reset_s = seconds_to_end(period, now_s)
                if period == "min":
                    reset_s = use.recent.find_reset(now_s, MINUTE_S)
                if not is_money:
                    found[1].append(Window(limit, max(0, limit - used), reset_s))
        return Standing(*(min(each, key=lambda one: one.remaining, default=None) for each in found))

    def _use_of(self, limited: Limited) -> tuple[Use, float]:
        """Return the usage that still counts now, and the time."""
        use, now_s = self._uses.get(limited.identity), self.clock.time()
        if use is None:
            use = self._uses[limited.identity] = Use()
        use.admitted.forget(now_s, limited.rate.period_s if limited.rate is not None else 0.0)
        use.recent.forget(now_s, MINUTE_S)
        return use, now_s

    @staticmethod
    def _check_quotas(limited: Limited, use: Use, now_s: float) -> None:
        for quota in use.list_quotas(limited, now_s):
            if quota.used < quota.limit:
                continue
            again_s = seconds_to_end(quota.period, now_s)
            if quota.period == "min":
                again_s = use.recent.find_wait(quota.limit, now_s, MINUTE_S)
            when, hint = _ENDS[quota.period]
            raise LimitReached(
                f"{limited.title} has used its {quota.words} of {when}",
                retry_after_s=again_s,
                hint=hint,
            )

    @staticmethod
    def _check_rate(limited: Limited, use: Use, now_s: float) -> None:
        rate = limited.rate
        if rate is None or use.admitted.sum < rate.count:
            return
        raise LimitReached(
            f"{limited.title} is limited to {count_requests(rate.count)} per "
            f"{rate.period}, and has reached that limit",
            retry_after_s=use.admitted.find_wait(rate.count, now_s, rate.period_s),
            hint="send fewer requests, or wait",
        )

    def _take(self, limited: Limited, size: Size, price: int) -> tuple[Use, int, int] | None:
        """Reserve tokens if there is room, or if some are left and nothing else runs."""
        use, now_s = self._use_of(limited)
        quotas = list(use.list_quotas(limited, now_s))
        tokens = size() if quotas else 0
        for limit, _, used, reserved, _, is_money in quotas:
            wanted = tokens * price if is_money else tokens
            if used + reserved + wanted > limit and (use.active or used >= limit):
                return None
        use.hold(tokens, price, 1)
        return use, tokens, price


def sum_period(days: Mapping[str, int], period: str, now_s: float) -> int:
    """Return the sum of the running month, else of the day."""
    day = name_day(now_s)
    if period == MONTH:
        return sum(amount for one, amount in days.items() if one[:7] == day[:7])
    return days.get(day, 0)


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
