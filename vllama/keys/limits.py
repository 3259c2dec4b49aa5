"""What a key may use: requests in a period, tokens of a day, requests at once.

Rates are counted by a sliding window, which remembers the time of every admission: no period of
that length, wherever it begins, has more. A fixed window or a token bucket would let twice as many
pass around its edge.

Nobody knows the tokens of an answer before it has ended. So that a key exceeds its tokens by no
more than one answer, several requests run at once only while there is room for as many answers of
the largest size that this key has had; otherwise the next request waits for the one before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from msgspec import Struct

from vllama.clock import Clock
from vllama.errors import LimitReached
from vllama.keys.amounts import DAY_S, Rate, format_count
from vllama.keys.key import Key


class Window(Struct, frozen=True):
    """How much of one limit is left, and in how many seconds all of it will be."""

    limit: int
    remaining: int
    reset_s: float


class Standing(Struct, frozen=True):
    """Where a key stands; None for what is not limited."""

    requests: Window | None = None
    tokens: Window | None = None


@dataclass(slots=True)
class Use:
    """What one key has used. `admitted` are the Unix times of its latest admissions.

    Of the `running` requests, those in `waiting` wait for room under the limit of tokens, and
    `active` ones do not. `largest` is the number of tokens of the largest answer so far.
    """

    admitted: deque[float] = field(default_factory=deque)
    running: int = 0
    active: int = 0
    day: str = ""
    tokens: int = 0
    largest: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class KeyLimits:
    """The limits of all keys; to be used in one event loop.

    Keys without limits are counted too, since they may be given some at any time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._uses: dict[str, Use] = {}

    def restore(
        self, day: str, tokens: Mapping[str, int], admitted: Mapping[str, Sequence[float]]
    ) -> None:
        """Take over from the server before this one, by the identities of keys.

        `tokens` are those used on `day`, `admitted` the Unix times of admissions.
        """
        for identity, count in tokens.items():
            use = self._use_of(identity)
            use.day, use.tokens = day, count
        for identity, times_s in admitted.items():
            self._use_of(identity).admitted.extend(sorted(times_s))

    def admit(self, key: Key) -> asyncio.Future[None] | None:
        """Admit a request, for which `finish` has to be called once. Raises LimitReached.

        If a future is returned, the request has to `wait` for it first.
        """
        use, now_s = self._use_of(key.identity), self._clock.time()
        self._check_tokens(key, use)
        self._check_rate(key, use, now_s)
        if key.concurrent is not None and use.running >= key.concurrent:
            raise LimitReached(
                f"the key '{key.name}' may have {count_requests(key.concurrent)} at once, and has "
                "as many",
                retry_after_s=1.0,
                hint="wait until one of them has ended",
            )
        if key.rate is not None:
            use.admitted.append(now_s)
        use.running += 1
        if not use.waiting and _has_room(key, use):
            use.active += 1
            return None
        turn = asyncio.get_running_loop().create_future()
        use.waiting.append(turn)
        return turn

    async def wait(self, key: Key, turn: asyncio.Future[None]) -> None:
        """Wait until the answers that are being made leave room for another one.

        Raises LimitReached if they have used up the tokens of the day. After an error, `finish`
        must not be called.
        """
        use = self._use_of(key.identity)
        try:
            await turn
            self._check_tokens(key, self._use_of(key.identity))
        except BaseException:
            use.running -= 1
            if turn.done() and not turn.cancelled():
                use.active -= 1
                self._let_in(key, use)
            elif turn in use.waiting:
                use.waiting.remove(turn)
            raise

    def finish(self, key: Key, tokens: int) -> None:
        """Count a request of `key` that has ended, and the tokens that it took."""
        use = self._use_of(key.identity)
        use.tokens += tokens
        use.largest = max(use.largest, tokens)
        use.running -= 1
        use.active -= 1
        self._let_in(key, use)

    def find_standing(self, key: Key) -> Standing:
        """Return what is left of the limits."""
        use, now_s = self._use_of(key.identity), self._clock.time()
        requests = tokens = None
        if key.rate is not None:
            recent = _forget_before(use, now_s, key.rate)
            reset_s = recent[-1] + key.rate.period_s - now_s if recent else 0.0
            left = max(0, key.rate.count - len(recent))
            requests = Window(key.rate.count, left, reset_s)
        if key.tokens is not None:
            left = max(0, key.tokens - use.tokens)
            tokens = Window(key.tokens, left, seconds_to_midnight(now_s))
        return Standing(requests, tokens)

    def _use_of(self, identity: str) -> Use:
        """Return what a key has used, with the tokens of today."""
        use = self._uses.get(identity)
        if use is None:
            use = self._uses[identity] = Use()
        day = name_day(self._clock.time())
        if use.day != day:
            use.day, use.tokens = day, 0
        return use

    def _check_tokens(self, key: Key, use: Use) -> None:
        if key.tokens is not None and use.tokens >= key.tokens:
            raise LimitReached(
                f"the key '{key.name}' has used its {format_count(key.tokens)} tokens of today",
                retry_after_s=seconds_to_midnight(self._clock.time()),
                hint="they are counted anew from midnight (UTC)",
            )

    @staticmethod
    def _check_rate(key: Key, use: Use, now_s: float) -> None:
        if key.rate is None:
            return
        recent = _forget_before(use, now_s, key.rate)
        if len(recent) >= key.rate.count:
            free_s = recent[-key.rate.count] + key.rate.period_s
            raise LimitReached(
                f"the key '{key.name}' may make {count_requests(key.rate.count)} per "
                f"{key.rate.period}, "
                "and has made as many",
                retry_after_s=free_s - now_s,
                hint="send fewer requests, or wait",
            )

    @staticmethod
    def _let_in(key: Key, use: Use) -> None:
        """Let waiting requests go on, in their order, as far as there is room."""
        while use.waiting and (use.waiting[0].done() or _has_room(key, use)):
            turn = use.waiting.popleft()
            if not turn.done():
                use.active += 1
                turn.set_result(None)


def count_requests(count: int) -> str:
    """Return a number of requests in words."""
    return "1 request" if count == 1 else f"{count} requests"


def _has_room(key: Key, use: Use) -> bool:
    """Return whether one more request may run beside the active ones."""
    if key.tokens is None or use.active == 0:
        return True
    return use.largest > 0 and use.tokens + use.active * use.largest < key.tokens


def _forget_before(use: Use, now_s: float, rate: Rate) -> deque[float]:
    """Forget the admissions that are older than the period of `rate`; return the others."""
    while use.admitted and use.admitted[0] <= now_s - rate.period_s:
        use.admitted.popleft()
    return use.admitted


def name_day(time_s: float) -> str:
    """Return the day (UTC) of a Unix time, as `2026-11-23`."""
    return _name_day(int(time_s // DAY_S))


@lru_cache(maxsize=4)
def _name_day(days: int) -> str:
    return datetime.fromtimestamp(days * DAY_S, UTC).date().isoformat()


def seconds_to_midnight(time_s: float) -> float:
    """Return the time until the next day (UTC) begins."""
    return DAY_S - time_s % DAY_S
