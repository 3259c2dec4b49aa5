"""Values of a plan: what to launch, how, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from vllama.base.units import format_amount, format_amounts
from vllama.chat.request import LoadOptions
from vllama.config.engine_settings import EngineSettings
from vllama.engines.base import DiscoveredEngines, Installation, Memory, Mode, Settings
from vllama.machine.types import Platform
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.draft_model import DraftSpeeds

RESERVE_BYTES = 512 * 1024 * 1024
"""What stays free of each kind of memory, whatever the settings say."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What one request needs of an instance; of `load` None means: whatever is there."""

    mode: Mode = Mode.CHAT
    load: LoadOptions = LoadOptions()
    logprobs: bool = False
    concurrent: bool = False  # requests have come while another one was served


@dataclass(frozen=True, slots=True, kw_only=True)
class Concessions:
    """What failed starts of a model have taught its next plan (`ladder`)."""

    max_context: int | None = None  # in tokens, unless the user asked for more
    max_parallel: int | None = None  # requests at once, unless the user asked for more
    eager: bool = False  # nothing that trades memory for speed
    without: frozenset[str] = frozenset()  # engines that failed


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
    # by the keys of `draft_model.make_key`
    draft_speeds: Mapping[str, DraftSpeeds] = field(default_factory=dict)

    @property
    def reserve_bytes(self) -> int:
        """How much memory stays free, on each GPU or of the RAM."""
        return max(RESERVE_BYTES, self.settings.gpu_overhead_bytes)

    def of(self, bundle: Bundle) -> Facts:
        """Return the facts for one model: its own settings come before those for all.

        An engine that the user named is meant for models on this disk, not for an upstream's.
        """
        own = bundle.settings
        given: dict[str, Any] = {
            "engine": own.engine,
            "context_length": own.context,
            "num_parallel": own.parallel,
            "replicas": own.replicas,
            "kv_cache_type": own.kv_cache_type,
            "engine_args": own.engine_args,
            "strict": own.strict,
            "inspect": own.inspect,
        }
        given = {name: value for name, value in given.items() if value is not None}
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
    usable_bytes: int  # of the same kind of memory
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
        """What it takes."""
        return self.memory.total_bytes

    @property
    def fits(self) -> bool:
        """Whether there is enough memory."""
        return self.needed_bytes <= self.usable_bytes

    @property
    def roomy(self) -> bool:
        """Whether it fits with a context that one can work with, not only with a shrunken one."""
        return self.fits and self.context_length >= self.least_context

    @property
    def needed(self) -> str:
        """What it takes, for people."""
        return format_amounts(self.needed_bytes, self.usable_bytes)[0]

    @property
    def usable(self) -> str:
        """What there is, for people."""
        return format_amounts(self.needed_bytes, self.usable_bytes)[1]

    @property
    def numbers(self) -> str:
        """The estimate and its parts, for people."""
        memory = self.memory
        return (
            f"{self.needed}: weights {format_amount(memory.weights_bytes)}, "
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
    most_parallel: int | None = None  # requests at once if so many came (`Need.concurrent`)
    relief: Concessions = field(default_factory=Concessions)  # what it had to make do with
    instead: str = ""  # why it is not the first plan; empty if it is

    @property
    def may_grow(self) -> bool:
        """Whether it would answer more requests at once if they came."""
        return (self.most_parallel or 0) > (self.settings.parallel or 1)
