"""Requests to models under the limits of their keys, and the record of what they took.

A request is counted once: before the last byte of its answer is written, or when it ends without
one. So an answer that a client has received whole is in the journal, even if the server is killed
in the next moment. Refused and failed requests are not counted, unless tokens were generated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vllama.clock import Clock, now_ns
from vllama.errors import LimitReached
from vllama.http.departure import unless_gone
from vllama.http.request import Request
from vllama.keys.limits import KeyLimits, Window, name_day
from vllama.log_context import model
from vllama.routes.dialect import Dialect, find_dialect
from vllama.units import format_go_duration, rfc3339_utc
from vllama.usage.entries import Admitted, Amounts, Served

if TYPE_CHECKING:
    from vllama.keys.key import Key
    from vllama.metrics.server_metrics import Metrics
    from vllama.routes.running import RunningRequest
    from vllama.usage.recorder import UsageRecorder

MAX_RETRY_S = 60.0
"""The clients of OpenAI and Anthropic obey no longer Retry-After, and would try again at once."""


class Meter:
    """What all requests to models pass; `recorder` None: what they take is not kept."""

    def __init__(
        self, limits: KeyLimits, recorder: UsageRecorder | None, metrics: Metrics, clock: Clock
    ) -> None:
        self.recorder = recorder
        self._limits = limits
        self._metrics = metrics
        self._clock = clock

    async def admit(self, request: Request, running: RunningRequest) -> None:
        """Admit a request, and have it counted at its end. Raises LimitReached, ClientGone."""
        key = running.access
        if key is not None:
            await self._admit_key(request, key)
        running.is_metered = True
        request.before_end = lambda: self.finish(running, is_whole=True)

    async def _admit_key(self, request: Request, key: Key) -> None:
        try:
            turn = self._limits.admit(key)
            if key.rate is not None and self.recorder is not None:
                now_s = self._clock.time()
                self.recorder.record(Admitted(key.identity, now_s, now_s + key.rate.period_s))
            if turn is not None:
                waiting = self._limits.wait(key, turn)
                await unless_gone(request, waiting, lambda _: self._limits.finish(key, 0))
        except LimitReached as error:
            self._show_standing(request, key)
            if error.retry_after_s > MAX_RETRY_S:
                request.set_header("x-should-retry", "false")
            raise
        self._show_standing(request, key)

    def finish(self, running: RunningRequest, *, is_whole: bool = False) -> None:
        """Count a request, unless that has been done; `is_whole`: its answer is about to end."""
        if not running.is_metered:
            return
        request = running.request
        running.is_metered, request.before_end = False, None
        amounts = running.sum_amounts((now_ns() - request.started_ns) // 1000)
        is_answered = is_whole and request.status == 200 and request.failure is None
        name = running.model or model.get()
        key = running.access
        if key is not None:
            self._limits.finish(key, amounts.tokens)
        if not name or not (is_answered or amounts.tokens):
            return
        amounts.requests = 1
        self._count(key, name, amounts)

    def _count(self, key: Key | None, model_name: str, amounts: Amounts) -> None:
        key_name, identity = (key.name, key.identity) if key is not None else ("", "")
        self._metrics.count_usage(
            key_name,
            model_name,
            prompt=amounts.prompt_tokens,
            cached=amounts.cached_tokens,
            generated=amounts.generated_tokens,
        )
        if self.recorder is not None:
            day = name_day(self._clock.time())
            self.recorder.record(Served(day, key_name, model_name, amounts, identity))

    def _show_standing(self, request: Request, key: Key) -> None:
        """Say in headers what is left of the limits, in the words of the route's dialect."""
        if key.rate is None and key.tokens is None:
            return
        standing = self._limits.find_standing(key)
        is_anthropic = find_dialect(request.path) is Dialect.ANTHROPIC
        for kind, window in (("requests", standing.requests), ("tokens", standing.tokens)):
            if window is None:
                continue
            named = name_anthropic_headers if is_anthropic else name_openai_headers
            for name, value in named(kind, window, self._clock.time()).items():
                request.set_header(name, value)


def name_openai_headers(kind: str, window: Window, now_s: float) -> dict[str, str]:
    """Return the headers of OpenAI's API; the time of the reset is a duration there."""
    return {
        f"x-ratelimit-limit-{kind}": str(window.limit),
        f"x-ratelimit-remaining-{kind}": str(window.remaining),
        f"x-ratelimit-reset-{kind}": format_go_duration(math.ceil(window.reset_s * 1e3) * 10**6),
    }


def name_anthropic_headers(kind: str, window: Window, now_s: float) -> dict[str, str]:
    """Return the headers of Anthropic's API; the time of the reset is in RFC 3339 there."""
    at_ns = math.ceil(now_s + window.reset_s) * 10**9
    return {
        f"anthropic-ratelimit-{kind}-limit": str(window.limit),
        f"anthropic-ratelimit-{kind}-remaining": str(window.remaining),
        f"anthropic-ratelimit-{kind}-reset": rfc3339_utc(at_ns).replace(".000000000", ""),
    }
