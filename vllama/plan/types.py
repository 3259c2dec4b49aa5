"""Values of a plan: what to launch, how, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from vllama.engines.base import DiscoveredEngines, Installation, Mode, Settings
from vllama.engines.capabilities import Tuning
from vllama.hardware.types import Platform
from vllama.models.resolve.memory_fit import format_amount, format_amounts
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.draft_model import DraftSpeeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What the user settled, for all models or for one; None means: decide.

    `replicas` processes of each model share cores and memory. `gpus` are the indices of the GPUs to
    use, or "spread" (all of them).
    """

    engine: str | None = None
    context_length: int | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    flash_attention: bool | None = None
    kv_cache_type: str | None = None
    parallel: int | None = None
    replicas: int = 1
    stall_timeout_s: float | None = 300.0
    extra_args: tuple[str, ...] = ()
    reserve_bytes: int = 512 * 1024 * 1024
    strict: bool = False
    gpus: tuple[int, ...] | str | None = None


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What one request needs of an instance; None means: whatever is there.

    `threads` is what somebody asked for, `threads_at_most` what other programs leave cores for.
    `concurrent`: requests have come while another one was served.
    """

    mode: Mode = Mode.CHAT
    context_length: int | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    threads_at_most: int | None = None
    logprobs: bool = False
    concurrent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Concessions:
    """What failed starts of a model have taught its next plan (`ladder`).

    An automatic context is at most `context_length` tokens, and at most `parallel` requests run at
    once, unless the user asked for more. `eager`: nothing that trades memory for speed. `without`:
    engines that failed.
    """

    context_length: int | None = None
    parallel: int | None = None
    eager: bool = False
    without: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a decision may look at; `draft_speeds` by the keys of `draft_model.make_key`."""

    platform: Platform
    found: DiscoveredEngines
    preferences: Preferences = field(default_factory=Preferences)
    relief: Concessions = field(default_factory=Concessions)
    draft_speeds: Mapping[str, DraftSpeeds] = field(default_factory=dict)

    def of(self, bundle: Bundle) -> Facts:
        """Return the facts for one model: its own settings come before those for all.

        An engine that the user named is meant for models on this disk, not for an upstream's.
        """
        own = bundle.settings
        given: dict[str, Any] = {
            "engine": own.engine,
            "context_length": own.context,
            "parallel": own.parallel,
            "replicas": own.replicas,
            "kv_cache_type": own.kv_cache_type,
            "extra_args": own.engine_args,
            "strict": own.strict,
            "gpus": own.gpus,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if bundle.format is Format.REMOTE:
            given["engine"] = None
        return replace(self, preferences=replace(self.preferences, **given)) if given else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """An estimate, in bytes, and whether it is taken from GPUs.

    `prompt_cache_bytes` are taken as conversations come, of the RAM in any case. `copied_bytes` are
    weights that are in memory a second time, which makes room when memory runs short (`repacking`).
    """

    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    fixed_bytes: int
    prompt_cache_bytes: int = 0
    copied_bytes: int = 0
    on_gpu: bool = False

    @property
    def total_bytes(self) -> int:
        """What has to be there; on a GPU without the prompt cache, which is not there."""
        cache_bytes = 0 if self.on_gpu else self.prompt_cache_bytes
        return (
            self.weights_bytes + self.kv_bytes + self.compute_bytes + self.fixed_bytes + cache_bytes
        )

    @property
    def resident_bytes(self) -> int:
        """What the process shows where there is enough memory, with what is there twice."""
        return self.total_bytes + self.copied_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An engine that is installed, and why it was taken."""

    engine: str
    installation: Installation
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a model takes here, before anybody has judged whether that is too much.

    Context in tokens, `gpu_layers` -1: all; `usable_bytes` is what there is of that memory.
    `parallel` requests are answered at once, None: as many as the engine likes; `most_parallel`
    would be if they came. `context_asked`: somebody asked for that much context.
    """

    gpu_layers: int
    context_length: int
    memory: Memory
    usable_bytes: int
    parallel: int | None = None
    most_parallel: int | None = None
    reasons: tuple[str, ...] = ()
    tuning: Tuning | None = None
    context_asked: bool = False

    @property
    def fits(self) -> bool:
        """Whether there is enough memory."""
        return self.memory.total_bytes <= self.usable_bytes

    @property
    def usable(self) -> str:
        """What there is, for people."""
        return format_amounts(self.memory.total_bytes, self.usable_bytes)[1]

    @property
    def numbers(self) -> str:
        """The estimate and its parts, for people."""
        memory = self.memory
        total, _ = format_amounts(memory.total_bytes, self.usable_bytes)
        return (
            f"{total}: weights {format_amount(memory.weights_bytes)}, "
            f"context of {self.context_length} tokens {format_amount(memory.kv_bytes)}, "
            f"buffers {format_amount(memory.compute_bytes + memory.fixed_bytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision and its reasons, one sentence each.

    `context_asked`: somebody asked for that much context. `most_threads` are those that would
    generate if no other program wanted a core, None: their number stays as it is; `most_parallel`
    are the requests that it would answer at once if they came (`Need.concurrent`). `relief` is what
    it had to make do with; `instead` says so, and why, of a plan that is not the first; else it is
    empty.
    """

    bundle: Bundle
    info: ModelInfo
    engine: str
    installation: Installation
    settings: Settings
    memory: Memory
    reasons: tuple[str, ...]
    context_asked: bool = False
    most_threads: int | None = None
    most_parallel: int | None = None
    relief: Concessions = field(default_factory=Concessions)
    instead: str = ""

    @property
    def may_grow(self) -> bool:
        """Whether it would answer more requests at once if they came."""
        return (self.most_parallel or 0) > (self.settings.parallel or 1)
