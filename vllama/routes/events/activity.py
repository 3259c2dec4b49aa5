"""Activity of requests: tokens, times to the first token, and the latest that have ended.

`Activity` is the only part of the events that costs something for each request, whoever listens.
`History` has the samples of the last hour: rates, requests and memory, for graphs. `Minutes` has
those of the last day, one a minute.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from statistics import fmean
from typing import NamedTuple

import msgspec

from vllama.base import executors
from vllama.base.clock import now_ns
from vllama.dialects.events import EndedRow, GpuUse, MachineUse, Pool, Sample
from vllama.machine.detect import read_cpu_use, read_gpu_uses
from vllama.machine.types import Platform, Vendor, name_pool
from vllama.plan.distribution import list_usable
from vllama.plan.types import RAM
from vllama.routes.recording.running import RunningRequest, RunningRequests
from vllama.routes.recording.stage import Stage
from vllama.routes.route import RouteKind
from vllama.scheduler.scheduler import Scheduler
from vllama.scheduler.views import sum_pools

MAX_ENDED = 1000
MAX_TOLD = 100
"""Those in a snapshot of the event stream."""
CHANGES = (RouteKind.MODEL, RouteKind.WRITES, RouteKind.SETS)
"""The routes whose refusals are kept: what was to be done is not. Others only tell something."""


class Activity(Stage):
    """Counts for the samples, and the requests that have ended lately.

    Requests to models are kept; of all others those that were to change something and did not, and
    faults of the server.
    """

    def __init__(self) -> None:
        self._ended: deque[EndedRow] = deque(maxlen=MAX_ENDED)
        self.count = 0  # of all that have ever been kept
        self._tokens = 0  # of requests that have ended
        self._sampled_ns = now_ns()
        self._sampled_tokens = 0
        self._first_tokens = 0  # how many came since the last sample
        self._first_tokens_s = 0.0

    def ended(self, running: RunningRequest, row: EndedRow) -> None:
        """Take note of a request that has ended."""
        failed = running.route.kind in CHANGES or row.status >= 500
        if not row.model and (row.error is None or not failed):
            return
        self._count_first_token(running)
        self._tokens += row.generated_tokens
        self._ended.append(row)
        self.count += 1

    def list_ended(self) -> list[EndedRow]:
        """Return the latest requests that have ended, oldest first."""
        return list(self._ended)[-MAX_TOLD:]

    def list_before(self, id_: str, limit: int) -> tuple[list[EndedRow], bool]:
        """Return those that ended before a request, newest first, and whether there are more.

        Without an id the newest. Clients may use an id twice, so the oldest of that id counts.
        """
        rows = list(self._ended)
        ids = [row.id for row in rows]
        end = (ids.index(id_) if id_ in ids else 0) if id_ else len(rows)
        start = max(0, end - limit)
        return rows[start:end][::-1], start > 0

    def list_after(self, count: int) -> list[EndedRow]:
        """Return those that came after the first `count`, as far as they are kept."""
        new = self.count - count
        return list(self._ended)[-new:] if new > 0 else []

    def take_rates(self, running: Collection[RunningRequest]) -> tuple[float, float | None]:
        """Return tokens per second and the mean time to the first token since the last call.

        The second is None if no answer has begun since.
        """
        for one in running:
            self._count_first_token(one)
        tokens = self._tokens + sum(one.generated_tokens for one in running)
        now = now_ns()
        elapsed_s = (now - self._sampled_ns) / 1e9
        rate = (tokens - self._sampled_tokens) / elapsed_s if elapsed_s > 0 else 0.0
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


INTERVAL_S = 5.0
HOUR_S = 3600.0
MINUTE_S = 60.0
DAY_S = 24 * HOUR_S
MAX_SAMPLES = int(HOUR_S / INTERVAL_S)
# To measure an engine's memory, the kernel walks all of its pages: 10 ms and more for large models.
# Loads and unloads are measured anyway.
MEASURE_S = 30.0


class Minutes:
    """A ring with a sample a minute for the last day; one that repeats the last is left out."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=int(DAY_S / MINUTE_S))
        self._latest: list[Sample] = []  # those of the minute that is not over

    def add(self, sample: Sample) -> None:
        """Take note of a sample, and sum up the minute before it."""
        if self._latest and sample.time // MINUTE_S > self._latest[0].time // MINUTE_S:
            minute = _sum_up(self._latest)
            last = self._samples[-1] if self._samples else None
            if minute.machine or last is None or _state_of(last) != _state_of(minute):
                self._samples.append(minute)
            self._latest.clear()
        self._latest.append(sample)

    def list_since(self, time_s: float) -> list[Sample]:
        """Return the samples since a Unix time, oldest first."""
        return [sample for sample in self._samples if sample.time >= time_s]


def _sum_up(samples: list[Sample]) -> Sample:
    """Return mean rates, the most requests, and the last of all else."""
    firsts = [one.first_token_s for one in samples if one.first_token_s is not None]
    return msgspec.structs.replace(
        samples[-1],
        tokens_per_s=round(fmean(one.tokens_per_s for one in samples), 1),
        first_token_s=round(fmean(firsts), 3) if firsts else None,
        requests=max(one.requests for one in samples),
        queued=max(one.queued for one in samples),
    )


def _state_of(sample: Sample) -> Sample:
    return msgspec.structs.replace(sample, time=0.0, machine=None)


class History:
    """A ring with the samples of the last hour; a sample that repeats the last one is left out."""

    def __init__(
        self,
        scheduler: Scheduler,
        running: RunningRequests,
        activity: Activity,
        platform: Platform,
    ) -> None:
        self._scheduler = scheduler
        self._running = running
        self._activity = activity
        # by pool: all of it, and what was free when the server started
        self._pools = {RAM: (platform.ram_total_bytes, platform.ram_available_bytes)} | {
            name_pool(gpu.index): (gpu.total_bytes, gpu.free_bytes) for gpu in list_usable(platform)
        }
        self._gpus = [gpu.index for gpu in list_usable(platform) if gpu.vendor is Vendor.NVIDIA]
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.minutes = Minutes()
        self.count = 0

    async def take(self, *, watched: bool) -> None:
        """Take a sample; memory is measured for it now and then, if `watched` or in use."""
        if watched or self._scheduler.running:
            await self._scheduler.measure(max_age_s=MEASURE_S, unloaded=watched)
        sample = self._make_sample()
        if watched:
            sample = msgspec.structs.replace(sample, machine=await self._read_machine())
        self.minutes.add(sample)
        last = self._samples[-1] if self._samples else None
        if watched or last is None or _state_of(last) != _state_of(sample):
            self._samples.append(sample)
            self.count += 1

    async def _read_machine(self) -> MachineUse:
        """Ask how busy the machine is, in a thread: `nvidia-smi` is a process."""
        gpus = await executors.upkeep.run(read_gpu_uses) if self._gpus else {}
        return MachineUse(
            cpu=read_cpu_use(),
            gpus={
                name_pool(index): GpuUse(use=use, temperature_c=degrees, power_w=watts)
                for index, (use, degrees, watts) in gpus.items()
                if index in self._gpus
            },
        )

    def list_samples(self) -> list[Sample]:
        """Return the samples of the last hour, oldest first."""
        since_s = time.time() - HOUR_S
        return [sample for sample in self._samples if sample.time >= since_s]

    def list_after(self, count: int) -> list[Sample]:
        """Return the samples that came after the first `count`, as far as they are kept."""
        new = self.count - count
        return list(self._samples)[-new:] if new > 0 else []

    def _make_sample(self) -> Sample:
        views = self._scheduler.list_views()
        planned = sum_pools(view.planned for view in views)
        measured = sum_pools(view.measured for view in views)
        free = self._scheduler.free
        tokens_per_s, first_token_s = self._activity.take_rates(self._running.list_requests())
        return Sample(
            time=round(time.time(), 3),
            tokens_per_s=tokens_per_s,
            first_token_s=first_token_s,
            requests=sum(view.leases for view in views),
            queued=sum(view.queued for view in views),
            memory={
                pool: Pool(
                    total=total,
                    planned=planned.get(pool, 0),
                    measured=measured.get(pool, 0),
                    free=max(0, free.get(pool, free_at_start)),
                )
                for pool, (total, free_at_start) in self._pools.items()
            },
        )


class AccessLine(NamedTuple):
    """The message of a request's log record; it is written where the log is, not in the request.

    `end` completes the line, and says how the request ended if that was not well.
    """

    row: EndedRow
    end: str

    def __str__(self) -> str:
        row = self.row
        parts = [f"{row.method} {row.path} {row.status or '-'} {row.seconds:.3f}s"]
        if row.model:
            parts.append(row.model)
        if row.prompt_tokens or row.generated_tokens:
            parts.append(f"{row.prompt_tokens or '?'}+{row.generated_tokens} tokens")
        if row.tokens_per_s:
            parts.append(f"{row.tokens_per_s:.1f} tokens/s")
        if row.client:
            parts.append(f"from {row.client}")
        if row.key:
            parts.append(f"key {row.key}")
        return " ".join(parts) + self.end

    @property
    def fields(self) -> dict[str, object]:
        """Further fields of a line of JSON, without unknown ones."""
        row = self.row
        counted = bool(row.prompt_tokens or row.generated_tokens)
        fields = {
            "method": row.method,
            "path": row.path,
            "status": row.status,
            "outcome": row.outcome,
            "seconds": row.seconds,
            "prompt_tokens": row.prompt_tokens,
            "completion_tokens": row.generated_tokens if counted else None,
            "tokens_per_s": row.tokens_per_s,
            "client": row.client or None,
            "key": row.key,
        }
        return {name: value for name, value in fields.items() if value is not None}
