"""What requests do: tokens, times to the first token, and the latest requests that have ended.

This is the only part of the events that costs something for each request, whoever listens.
"""

from __future__ import annotations

from collections import deque

from vllama.base.clock import now_ns
from vllama.dialects.events import EndedRow
from vllama.routes.recording.running import RunningRequest, RunningRequests

MAX_ENDED = 100


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

    def note_end(self, running: RunningRequest, row: EndedRow) -> None:
        """Take note of a request that has ended."""
        if not row.model and row.error is None:
            return
        self._count_first_token(running)
        self._tokens += row.tokens
        self._ended.append(row)
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

    def _count_first_token(self, running: RunningRequest) -> None:
        """Count the time to the first token if it came since the last sample."""
        first_ns = running.first_token_ns
        if first_ns is not None and first_ns >= self._sampled_ns:
            self._first_tokens += 1
            self._first_tokens_s += (first_ns - running.request.started_ns) / 1e9
