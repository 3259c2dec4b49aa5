"""Measurements of models: memory in pools, and speed with and without draft models.

Memory is what is free, what each engine holds, and what a model held at earlier loads. A pool is
"ram" or "gpu0", "gpu1" …; sizes are in bytes. The estimate counts for the first load of a model
only. Its measurements are kept on disk for later loads.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path

from vllama.base import executors, private
from vllama.base.threads import begin
from vllama.machine.detect import detect, find_unwritten_bytes, free_ram_bytes
from vllama.machine.nvidia import list_gpu_processes
from vllama.machine.types import Platform, Vendor, name_pool
from vllama.plan.distribution import list_needs, list_usable
from vllama.plan.draft_model import TRIAL_TOKENS, DraftSpeeds, Speed, make_key
from vllama.plan.types import RAM, Plan
from vllama.scheduler.hooks import Measured, Process
from vllama.scheduler.policy import Pools

log = logging.getLogger(__name__)

MAX_RECORDS = 5
LOCK_LIMIT_S = 5.0
# settings that do not change how much memory a process takes
MEMORY_NEUTRAL_SETTINGS = {
    "alias", "threads", "batch_threads", "stall_timeout_s", "prompt_cache_bytes",
}  # fmt: skip


class MemoryMeter:
    """Measures this machine. `reserve_of` returns the bytes that remain free in a pool."""

    def __init__(self, platform: Platform, reserve_of: Callable[[str], int]) -> None:
        self._usable = list_usable(platform)
        self._gpus = {name_pool(gpu.index): gpu.vendor for gpu in self._usable}
        self._names_pids = bool(platform.of(Vendor.NVIDIA))
        self._reserve_of = reserve_of
        self._writing: Future[None] | None = None

    def needs(self, plan: Plan) -> dict[str, int]:
        """Return a plan's estimate by pool of this machine, with room for conversations to come."""
        needs = list_needs(plan, self._usable)
        for gpu in plan.remote:
            needs[RAM] += needs.pop(name_pool(gpu.index), 0) * gpu.shares_ram
        return needs | {RAM: needs[RAM] + plan.memory.claimed_bytes} if RAM in needs else needs

    async def measure(
        self, processes: Mapping[Hashable, Process], *, gpus: bool = False
    ) -> Measured:
        """Measure free memory and `processes`, in a thread; GPUs only if `gpus`."""
        return await executors.upkeep.run(self._measure, processes, gpus and bool(self._gpus))

    def _measure(self, processes: Mapping[Hashable, Process], gpus: bool) -> Measured:
        before = free_ram_bytes()
        footprints = {key: process.measure_footprint() for key, process in processes.items()}
        # A process may end between the measurements. Its memory would count as held and as free,
        # and so be promised twice.
        returned = max(0, free_ram_bytes() - before)
        holds = {key: {RAM: item.ram_bytes} for key, item in footprints.items()}
        kept = sum(item.file_bytes for item in footprints.values())
        free = {RAM: free_ram_bytes(kept) - returned - self._reserve_of(RAM)}
        if gpus:
            for gpu in detect().accelerators:
                if self._gpus.get(name := name_pool(gpu.index)) is gpu.vendor:
                    free[name] = gpu.free_bytes - self._reserve_of(name)
            held = list_gpu_processes() if self._names_pids else {}
            for key, item in footprints.items():
                for pid in item.pids & held.keys():
                    for index, size in held[pid].items():
                        name = name_pool(index)
                        holds[key][name] = holds[key].get(name, 0) + size
        ended = frozenset(key for key, item in footprints.items() if not item.whole)
        unwritten = find_unwritten_bytes()
        if unwritten > free[RAM] and (self._writing is None or self._writing.done()):
            self._writing = begin(os.sync)  # the system alone would wait for 30 s and more
        return Measured(free=free, holds=holds, ended=ended, returning={RAM: unwritten})


def compute_fingerprint(plan: Plan) -> str:
    """Return a hash of all that decides how much memory a process takes.

    These are the files, the engine, its version and the settings.
    """
    settings = {
        name: sorted(map(str, value)) if isinstance(value, frozenset) else str(value)
        for name, value in asdict(plan.settings).items()
        if name not in MEMORY_NEUTRAL_SETTINGS
    }
    facts = [plan.bundle.key, plan.bundle.size_bytes, plan.engine, plan.installation.version]
    text = json.dumps([*facts, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class _RecordFile:
    """A small file in which a server keeps what it has measured, for its next starts: an object of
    JSON by keys. Another server may use the same file: changes are made under a lock, and no reader
    sees half of one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, object]:
        """Return all that is recorded; nothing if the file is missing or damaged."""
        try:
            value = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def change(self, key: str, make: Callable[[object], object]) -> None:
        """Replace the value of `key`, None if there is none yet; blocks for a small write.

        A file that cannot be written is reported in the log, since no request depends on it.
        """
        try:
            with private.lock_file(self._path.with_suffix(".lock"), LOCK_LIMIT_S):
                known = self.read()
                known[key] = make(known.get(key))
                private.replace(self._path, json.dumps(known))
        except OSError as error:
            log.warning("cannot record a measurement in %s: %s", self._path, error)


class MemoryRecords:
    """The file of measured memory: the last few measurements of each plan, of which the largest
    counts.
    """

    def __init__(self, path: Path) -> None:
        self._file = _RecordFile(path)

    def needs(self, plan: Plan) -> dict[str, int] | None:
        """Return the peak memory of a process with this plan by pool; None if it never ran."""
        seen = self._file.read().get(compute_fingerprint(plan))
        if not isinstance(seen, list):
            return None
        most: dict[str, int] = {}
        for row in seen:
            for pool, size in row.items() if isinstance(row, dict) else ():
                if isinstance(size, int):
                    most[str(pool)] = max(most.get(str(pool), 0), size)
        return most or None

    def add(self, plan: Plan, peak: Pools) -> None:
        """Record the peak memory of a process; blocks for the write of a small file."""

        def change(seen: object) -> object:
            return [*(seen if isinstance(seen, list) else []), dict(peak)][-MAX_RECORDS:]

        self._file.change(compute_fingerprint(plan), change)


MAX_TOKENS = 8 * TRIAL_TOKENS
"""Tokens that count; of more, the older ones count less and less."""


class DraftRecords:
    """The file of measured speeds, by the keys of `plan.draft_model.make_key`."""

    def __init__(self, path: Path) -> None:
        self._file = _RecordFile(path)

    def read(self) -> Mapping[str, DraftSpeeds]:
        """Return everything that was measured."""
        return {
            key: DraftSpeeds(
                with_draft=_read_speed(value, "with"), without=_read_speed(value, "without")
            )
            for key, value in self._file.read().items()
        }

    def add(self, plan: Plan, tokens: int, seconds: float) -> None:
        """Record an answer of a model that has a draft model, used or not; blocks."""
        side = "with" if plan.settings.draft_kind else "without"

        def change(known: object) -> object:
            before = _read_speed(known, side)
            kept = min(1.0, MAX_TOKENS / (before.tokens + tokens))
            row = [round((before.tokens + tokens) * kept), (before.seconds + seconds) * kept]
            return (known if isinstance(known, dict) else {}) | {side: row}

        key = make_key(plan.bundle, plan.installation)
        self._file.change(key, change)


def _read_speed(value: object, side: str) -> Speed:
    match value.get(side) if isinstance(value, dict) else None:
        case [int(tokens), int() | float() as seconds]:
            return Speed(tokens=tokens, seconds=seconds)
    return Speed()


def open_draft_records(data_dir: Path) -> DraftRecords:
    """Return the measured speeds of models with draft models."""
    return DraftRecords(data_dir / "drafts.json")
