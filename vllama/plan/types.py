"""Values of a plan: what to launch, how, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from vllama.base.units import format_amount, format_amounts
from vllama.chat.request import LoadOptions
from vllama.config.engine_settings import EngineSettings
from vllama.dialects.ollama.options import OWN_OPTIONS
from vllama.engines.base import DiscoveredEngines, Engine, Installation, Memory, Mode, Settings
from vllama.machine.types import Accelerator, Platform, name_pool
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.draft_model import DraftSpeeds

MIB = 1024**2
GIB = 1024**3
RAM = "ram"
"""The pool of the machine's memory; those of GPUs are named by `machine.types.name_pool`."""
FIT = "fit"
"""The KV cache type for f16 where the model then fits on the GPUs, and else q8_0."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements of one request for an instance; `load` None accepts the current one."""

    mode: Mode = Mode.CHAT
    load: LoadOptions = LoadOptions()
    logprobs: bool = False
    concurrent: bool = False  # requests have come while another one was served

    def apply(self, bundle: Bundle) -> Bundle:
        """Return a model as if the user had set for it what this asks of its load."""
        load, settings, parameters = self.load, bundle.settings, bundle.parameters
        own = {name: x for name in OWN_OPTIONS if (x := getattr(load, name)) is not None}
        if load.draft_num_predict is not None:
            parameters = {**parameters, "draft_num_predict": load.draft_num_predict}
        settings = replace(settings, **own, origins={**settings.origins, **dict.fromkeys(own, "")})
        return replace(bundle, parameters=parameters, settings=settings)


DEFAULT_NEED = Need()


@dataclass(frozen=True, slots=True, kw_only=True)
class Concessions:
    """Concessions of a model's next plan after failed starts (`ladder`)."""

    max_context: int | None = None  # in tokens, unless the user asked for more
    max_parallel: int | None = None  # requests at once, unless the user asked for more
    eager: bool = False  # nothing that trades memory for speed
    without: frozenset[str] = frozenset()  # engines that failed
    # bytes that are to be had of each pool, where that is less than the machine has
    room: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a decision may look at."""

    platform: Platform
    found: DiscoveredEngines
    settings: EngineSettings = EngineSettings()
    # of the model that is planned: indices of the GPUs to use, "spread" for all of them
    gpus: tuple[int, ...] | str | None = None
    relief: Concessions = field(default_factory=Concessions)
    slot_dir: Path | None = None  # where conversations are kept, None: nowhere
    share_dir: Path | None = None  # where slots are saved that requests share
    ours: Mapping[str, int] = field(default_factory=dict)  # bytes of each pool in our engines
    left_out: tuple[str, ...] = ()  # sentences on RPC servers that do not respond (`plan.remote`)
    # by the keys of `draft_model.make_key`
    draft_speeds: Mapping[str, DraftSpeeds] = field(default_factory=dict)

    @property
    def system_bytes(self) -> int:
        """Bytes for the system and its page cache where a GPU's memory is the RAM."""
        ram_bytes = self.platform.ram_total_bytes
        return min(max(2 * GIB, ram_bytes // 10), ram_bytes // 4)

    def reserve_of(self, pool: str = RAM) -> int:
        """Return how many bytes of a pool stay free, whatever the settings say.

        512 MiB, of a small one an eighth. Where a GPU's memory is the RAM, it is `system_bytes`, as
        far as the GPU's part does not leave that anyway.
        """
        ram_bytes = self.platform.ram_total_bytes
        gpu = next((g for g in self.platform.accelerators if name_pool(g.index) == pool), None)
        total_bytes = gpu.total_bytes if gpu else ram_bytes
        least = min(512 * MIB, total_bytes // 8)
        if gpu and gpu.shares_ram:
            least = max(least, self.system_bytes - (ram_bytes - total_bytes))
        return max(least, self.settings.gpu_overhead_bytes)

    def restrict_to(self, engine: Engine) -> Facts:
        """Return the facts without the GPUs that an engine, as it is installed, cannot use."""
        here = self.found.installations.get(engine.name)
        seen, _ = engine.install.needs.see(self.platform, here.version if here else "")
        return replace(self, platform=seen)

    def of(self, bundle: Bundle) -> Facts:
        """Return the facts for one model: its own settings come before those for all.

        An engine that the user named is meant for models on this disk, not for an upstream's.
        """
        own = bundle.settings
        same = own.given.keys() & {each.name for each in fields(EngineSettings)}
        given: dict[str, Any] = {name: getattr(own, name) for name in same}
        if bundle.format is Format.REMOTE:
            given["engine"] = None
        settings = replace(self.settings, **given) if given else self.settings
        slot_dir = self.slot_dir if own.cache_disk is None or own.cache_disk else None
        return replace(self, settings=settings, gpus=own.gpus or self.gpus, slot_dir=slot_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An engine that is installed, and why it was taken."""

    engine: str
    installation: Installation
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The launch and memory use of a model here, before it is judged whether that is too much."""

    settings: Settings  # of the launch, as far as its memory depends on them
    memory: Memory
    usable_bytes: int  # of the same kinds of memory
    # usable bytes of the pools whose part does not fit; None: it is one part
    lacking: Mapping[str, int] | None = None
    is_whole: bool = True  # no part is in RAM that a GPU could take
    least_context: int = 0  # tokens that one can work with
    most_parallel: int | None = None  # requests at once if so many came (`Need.concurrent`)
    reasons: tuple[str, ...] = ()
    context_asked: bool = False  # somebody asked for that much context

    @property
    def context_length(self) -> int:
        """The context in tokens."""
        return self.settings.context_length

    @property
    def needed_bytes(self) -> int:
        """Required bytes of the memory that `usable_bytes` are of."""
        parts = self.memory.gpu_parts
        return sum(parts.values()) if parts and self.is_whole else self.memory.total_bytes

    @property
    def fits(self) -> bool:
        """True if there is enough memory."""
        return self.needed_bytes <= self.usable_bytes if self.lacking is None else not self.lacking

    @property
    def short(self) -> Mapping[str, int]:
        """Usable bytes of the pools without room for their part, where all would be enough."""
        return (self.lacking or {}) if self.needed_bytes <= self.usable_bytes else {}

    @property
    def sums(self) -> tuple[int, int]:
        """Required and usable bytes to tell people: of the `short` pools if there are any."""
        if not self.short:
            return self.needed_bytes, self.usable_bytes
        parts = {RAM: self.memory.ram_bytes, **self.memory.gpu_parts}
        return sum(parts[pool] for pool in self.short), sum(self.short.values())

    @property
    def fits_gpus(self) -> bool:
        """True if the GPUs have room for their parts."""
        return not (self.lacking or {}).keys() - {RAM}

    @property
    def ram_share(self) -> float:
        """The part of it that lies in RAM, from 0 to 1."""
        return self.memory.ram_bytes / self.memory.total_bytes

    def because(self, reason: str | None) -> Estimate:
        """Return it with one more reason, which comes first."""
        return replace(self, reasons=(reason, *self.reasons)) if reason else self

    @property
    def kind(self) -> str:
        """Kind of the memory in `sums`, for people."""
        if not self.memory.on_gpu or self.short.keys() == {RAM}:
            return "system memory"
        is_gpu = RAM not in self.short if self.short else self.is_whole
        return "GPU memory" if is_gpu else "GPU memory and RAM"

    @property
    def roomy(self) -> bool:
        """True if it fits with a context that one can work with, not only with a shrunken one."""
        return self.fits and self.context_length >= self.least_context

    @property
    def needed(self) -> str:
        """Required memory, for people."""
        return format_amounts(*self.sums)[0]

    @property
    def usable(self) -> str:
        """Usable memory, for people."""
        return format_amounts(*self.sums)[1]

    @property
    def numbers(self) -> str:
        """The estimate and its parts, for people."""
        memory = self.memory
        total = format_amount(memory.total_bytes)
        part = "" if self.needed == total else f" of {total}"
        return (
            f"{self.needed}{part}: weights {format_amount(memory.weights_bytes)}, "
            f"context of {self.context_length} tokens {format_amount(memory.kv_bytes)}, "
            f"buffers {format_amount(memory.compute_bytes + memory.fixed_bytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision."""

    bundle: Bundle
    info: ModelInfo
    engine: str
    installation: Installation
    settings: Settings
    memory: Memory
    reasons: tuple[str, ...]  # one sentence each
    context_asked: bool = False  # somebody asked for that much context
    usual_context: int = 0  # what requests get that ask for none
    most_parallel: int | None = None  # requests at once if so many came (`Need.concurrent`)
    relief: Concessions = field(default_factory=Concessions)  # what it had to make do with
    instead: str = ""  # why it is not the first plan; empty if it is
    remote: tuple[Accelerator, ...] = ()  # devices of other machines that hold a part

    @property
    def may_grow(self) -> bool:
        """True if it would answer more requests at once if they came."""
        return (self.most_parallel or 0) > (self.settings.parallel or 1)
