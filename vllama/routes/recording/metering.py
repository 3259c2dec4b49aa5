"""Requests to models under the limits of their keys, and the record of what they took.

A request is counted once: before the last byte of its answer is written, or when it ends without
one. So an answer that a client has received whole is in the journal, even if the server is killed
in the next moment. Refused and failed requests are not counted, unless tokens were generated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vllama.accounts.keys.limits import KeyLimits, Limited, Window
from vllama.accounts.usage.entries import Admitted, Amounts, Served, name_day
from vllama.base.clock import now_ns
from vllama.base.errors import LimitReached
from vllama.base.log_context import model
from vllama.base.units import format_go_duration, rfc3339_utc
from vllama.net.http.departure import unless_gone
from vllama.routes.recording.running import RunningRequest, sum_amounts
from vllama.routes.recording.stage import Stage
from vllama.routes.route import Dialect

if TYPE_CHECKING:
    from vllama.accounts.keys.key import ApiKey
    from vllama.accounts.usage.money import Price
    from vllama.accounts.usage.recorder import UsageRecorder
    from vllama.dialects.events import EndedRow
    from vllama.observe.metrics.server_metrics import Metrics
    from vllama.routes.in_use import InUse

MAX_RETRY_S = 60.0
"""The clients of OpenAI and Anthropic obey no longer Retry-After, and would try again at once."""


class Meter(Stage):
    """Admits requests to models, reserves their tokens, and counts them once."""

    def __init__(
        self, in_use: InUse, limits: KeyLimits, recorder: UsageRecorder, metrics: Metrics
    ) -> None:
        self._in_use = in_use
        self.recorder = recorder
        self._limits = limits
        self._metrics = metrics
        self._clock = limits.clock

    async def admitted(self, running: RunningRequest) -> None:
        """Admit a request, and have it counted at its end. Raises LimitReached."""
        is_free = running.route.is_free
        if is_free is not None and await is_free(running.request):
            return
        self.admit(running)
        running.is_metered = True

    async def queued(self, running: RunningRequest) -> None:
        """Reserve the tokens that a request may take, once there is room; again for a next attempt.

        Raises LimitReached, ClientGone.
        """
        key, size = running.access, running.measure
        self.admit(running, running.model)
        if key is None or size is None or not running.is_metered:
            return
        self._release(running)
        price = self._find_price(running)
        wanted = size, price.highest if price is not None else 0, running.model
        running.reserved = self._limits.try_reserve(key, *wanted)
        if running.reserved is not None:
            return
        running.waits_for_tokens = True
        try:
            with self._showing_standing(running, key):
                running.reserved = await unless_gone(
                    running.request,
                    self._limits.reserve(key, *wanted),
                    self._limits.release,
                )
        finally:
            running.waits_for_tokens = False

    def admit(self, running: RunningRequest, name: str = "") -> None:
        """Admit a request; later to each model of its chain, once. Raises LimitReached."""
        key = running.access
        if key is None or name in running.admitted_to or (name and not running.is_metered):
            return
        with self._showing_standing(running, key):
            self._limits.admit(key, name, gives_way=running.is_row)
            self._record_recent(self._limits.list_new(key, name))
        running.admitted_to = (*running.admitted_to, name)

    def leased(self, running: RunningRequest) -> None:
        """Give back what a request cannot take, now that its model is known to the full."""
        if running.measure is not None and running.reserved is not None:
            self._limits.shrink(running.reserved, running.measure)

    def released(self, running: RunningRequest) -> None:
        """Give back the tokens of a row that pauses: the others may be requests of its own key."""
        if running.is_paused:
            self._release(running)

    def _release(self, running: RunningRequest) -> None:
        """Give back the tokens that are reserved for a request."""
        if running.reserved is not None:
            self._limits.release(running.reserved)
        running.reserved = None

    def _record_recent(self, limited: Iterable[Limited], tokens: int = 0) -> None:
        """Record an admission, or tokens, for limits that do not count by the calendar."""
        now_s = self._clock.time()
        for each in limited:
            limit = each.token_limit if tokens else each.rate
            if limit is not None and (limit.period == "min" or not tokens):
                until_s = now_s + limit.period_s
                self.recorder.record(Admitted(each.identity, now_s, until_s, tokens))

    def _find_price(self, running: RunningRequest) -> Price | None:
        """Return the price of the model's tokens now."""
        if running.wanted is not None:
            return running.wanted.bundle.settings.price
        # another node responds, with a model of its own
        return self._in_use.library.find_settings(running.model).price

    @contextmanager
    def _showing_standing(self, running: RunningRequest, key: ApiKey) -> Iterator[None]:
        """Say in headers what is left of the limits, and whether to come back soon."""
        try:
            yield
        except LimitReached as error:
            if error.retry_after_s > MAX_RETRY_S:
                running.request.set_header("x-should-retry", "false")
            raise
        finally:
            self._show_standing(running, key)

    def before_end(self, running: RunningRequest) -> None:
        """Count a request whose answer is about to end."""
        self._finish(running, is_whole=True)

    def ended(self, running: RunningRequest, row: EndedRow) -> None:
        """Count a request whose answer has not ended."""
        self._finish(running, is_whole=False)

    def _finish(self, running: RunningRequest, *, is_whole: bool) -> None:
        if not running.is_metered:
            return
        request = running.request
        running.is_metered = False
        amounts = sum_amounts(running, (now_ns() - request.started_ns) // 1000)
        is_answered = is_whole and request.status == 200 and request.failure is None
        name = running.model or model.get()
        key, price = running.access, self._find_price(running)
        if price is not None:
            amounts.spend, amounts.priced_requests = price.compute(amounts), 1
        if key is not None:
            used = amounts.tokens, amounts.spend, name
            self._limits.finish(key, *used, gives_way=running.is_row)
            self._release(running)
            if amounts.tokens:
                self._record_recent(self._limits.list_limited(key, name), amounts.tokens)
        if not name or not (is_answered or amounts.tokens):
            return
        amounts.requests = 1
        self._count(key, name, amounts)

    def _count(self, key: ApiKey | None, model_name: str, amounts: Amounts) -> None:
        key_name, *others = (key.name, key.identity, key.group or "", key.user) if key else [""] * 4
        self._metrics.count_usage(
            key_name,
            model_name,
            prompt=amounts.prompt_tokens,
            cached=amounts.cached_tokens,
            generated=amounts.generated_tokens,
        )
        day = name_day(self._clock.time())
        self.recorder.record(Served(day, key_name, model_name, amounts, *others))

    def _show_standing(self, running: RunningRequest, key: ApiKey) -> None:
        """Say in headers what is left of the limits, in the words of the route's dialect."""
        standing = self._limits.find_standing(key, running.model)
        is_anthropic = running.route.dialect is Dialect.ANTHROPIC
        for kind, window in (("requests", standing.requests), ("tokens", standing.tokens)):
            if window is None:
                continue
            named = name_anthropic_headers if is_anthropic else name_openai_headers
            for name, value in named(kind, window, self._clock.time()).items():
                running.request.set_header(name, value)


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
