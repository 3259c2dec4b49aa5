"""What requests do: tokens, times to the first token, and the latest requests that have ended.

This is the only part of the events that costs something for each request, whoever listens.
"""

from __future__ import annotations

from collections import deque

from vllama.base.clock import now_ns
from vllama.base.outcome import Outcome
from vllama.dialects.events import EndedRow
from vllama.routes.recording.running import RunningRequest, RunningRequests

MAX_ENDED = 100
MAX_PATH = 200
MAX_ERROR = 500


class Activity:
    """Counts for the samples, and the requests that have ended lately.

    Requests to models are kept, and all others that failed.
    """

    def __init__(self, running: RunningRequests) -> None:
        self._running = running
        self._ended: deque[EndedRow] = deque(maxlen=MAX_ENDED)
        self.count = 0  # of all that have ever been kept
        self._tokens = 0  # of requests that have ended
        self._sampled_ns = now_ns()
        self._sampled_tokens = 0
        self._first_tokens = 0  # how many came since the last sample
        self._first_tokens_s = 0.0

    def note_end(self, running: RunningRequest, seconds: float, outcome: Outcome) -> None:
        """Take note of a request that has ended."""
        request = running.request
        failure = request.failure
        if not running.model and failure is None:
            return
        tokens, rate = running.tokens, running.tokens_per_s
        first_s = self._count_first_token(running)
        self._tokens += tokens
        self._ended.append(
            EndedRow(
                id=running.id,
                model=running.model,
                method=request.method,
                path=request.path[:MAX_PATH],
                dialect=running.route.dialect,
                client=request.client_host,
                key=running.key or None,
                started_at=running.started_at,
                outcome=outcome,
                status=request.status,
                seconds=round(seconds, 3),
                prompt_tokens=running.prompt_tokens,
                tokens=tokens,
                tokens_per_s=round(rate, 1) if rate else None,
                first_token_s=first_s,
                error=failure.sentence()[:MAX_ERROR] if failure else None,
                capture=request.number if running.recorder is not None else None,
            )
        )
        self.count += 1

    def list_ended(self) -> list[EndedRow]:
        """Return the latest requests that have ended, oldest first."""
        return list(self._ended)

    def list_after(self, count: int) -> list[EndedRow]:
        """Return those that came after the first `count`, as far as they are kept."""
        new = self.count - count
        return list(self._ended)[-new:] if new > 0 else []

    def take_rates(self) -> tuple[float, float | None]:
        """Return tokens per second and the mean time to the first token since the last call.

        The second is None if no answer has begun since.
        """
        running = self._running.list_requests()
        for one in running:
            self._count_first_token(one)
        tokens, before = self._tokens + sum(one.tokens for one in running), self._sampled_tokens
        now = now_ns()
        elapsed_s = (now - self._sampled_ns) / 1e9
        rate = (tokens - before) / elapsed_s if elapsed_s > 0 else 0.0
        mean_s = self._first_tokens_s / self._first_tokens if self._first_tokens else None
        self._sampled_ns, self._sampled_tokens = now, tokens
        self._first_tokens, self._first_tokens_s = 0, 0.0
        return round(rate, 1), None if mean_s is None else round(mean_s, 3)

    def _count_first_token(self, running: RunningRequest) -> float | None:
        """Return the time to the first token, and count it if it came since the last sample."""
        first_ns = running.first_token_ns
        if first_ns is None:
            return None
        first_s = round((first_ns - running.request.started_ns) / 1e9, 3)
        if first_ns >= self._sampled_ns:
            self._first_tokens += 1
            self._first_tokens_s += first_s
        return first_s
