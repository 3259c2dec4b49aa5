"""The samples of the last hour: rates, requests and memory, for graphs."""

from __future__ import annotations

import time
from collections import deque

import msgspec

from vllama.dialects.events import Pool, Sample
from vllama.machine.types import Platform
from vllama.routes.events.activity import Activity
from vllama.scheduler.memory import RAM
from vllama.scheduler.scheduler import Scheduler
from vllama.scheduler.views import sum_pools

INTERVAL_S = 5.0
HOUR_S = 3600.0
MAX_SAMPLES = int(HOUR_S / INTERVAL_S)
# To measure an engine's memory, the kernel walks all of its pages: 10 ms and more for large models.
# Loads and unloads are measured anyway.
MEASURE_S = 30.0


class History:
    """A ring with the samples of the last hour; a sample that repeats the last one is left out."""

    def __init__(self, scheduler: Scheduler, activity: Activity, platform: Platform) -> None:
        self._scheduler = scheduler
        self._activity = activity
        # by pool: all of it, and what was free when the server started
        self._pools = {RAM: (platform.ram_total_bytes, platform.ram_available_bytes)} | {
            f"gpu{place}": (gpu.total_bytes, gpu.free_bytes)
            for place, gpu in enumerate(platform.accelerators)
        }
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.count = 0

    async def take(self, *, watched: bool) -> None:
        """Take a sample; memory is measured for it now and then, if `watched` or in use."""
        if watched or self._scheduler.running:
            await self._scheduler.measure(max_age_s=MEASURE_S, unloaded=watched)
        sample = self._make_sample()
        last = self._samples[-1] if self._samples else None
        if watched or last is None or msgspec.structs.replace(last, time=sample.time) != sample:
            self._samples.append(sample)
            self.count += 1

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
        tokens_per_s, first_token_s = self._activity.take_rates()
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
