"""What some engines can do and others cannot: optional protocols, checked with `isinstance`.

An adapter takes part by having the attributes; it inherits from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from vllama.engines.base import DiscoveredEngines, Engine, Installation, Memory, Mode, Settings
from vllama.machine.types import Platform
from vllama.models.types import Bundle, ModelInfo
from vllama.supervise.spec import Endpoint


@runtime_checkable
class Configurable(Protocol):
    """An engine whose adapter depends on the user's settings."""

    def configured(self, options: Mapping[str, object]) -> Engine:
        """Return the adapter for these settings. Raises ConfigError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRequest:
    """What to serve, before the engine's own `tune` has decided about memory.

    `settings` are those of the launch so far. `context_asked` means that somebody asked for that
    much context, so it must not shrink. Where nobody asked for a number of simultaneous requests,
    `at_most` limits the engine's choice. `reserve_bytes` have to stay free, on each GPU or of the
    RAM. `all_gpus`: every GPU of `platform` is to be used. `eager` is set after a start that ran
    out of memory: do without what makes the engine faster at the cost of memory.
    """

    settings: Settings
    platform: Platform
    info: ModelInfo
    installation: Installation
    context_asked: bool
    on_gpu: bool
    reserve_bytes: int
    at_most: int | None = None
    all_gpus: bool = False
    eager: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What an engine's `tune` decided: `settings` with its context, GPUs and `tuned_args`.

    `memory` is that of all its processes together. `reasons` are sentences for the plan, with the
    numbers.
    """

    settings: Settings
    memory: Memory
    reasons: tuple[str, ...]


@runtime_checkable
class Tunable(Protocol):
    """An engine with memory options and a memory layout of its own."""

    def tune(self, request: TuningRequest, /) -> Tuning:
        """Set its options from the model and the free memory. Pure.

        A model that does not fit is not refused here: the sizes say so. Raises NoPlan for
        arguments of the user that cannot be met.
        """
        ...


@runtime_checkable
class Sleeping(Protocol):
    """An engine that can release its memory without ending, and wakes faster than it starts.

    `sleep` and `wake` return (method, path) of a request without a body that is sent with the
    endpoint's key and answered with 200 when it is done. `asleep` returns that of a request that
    answers `{"is_sleeping": bool}`.
    """

    def sleeps(self, settings: Settings, /) -> bool:
        """Tell whether a process that was launched like this can sleep."""
        ...

    def sleep(self) -> tuple[str, str]:
        """Return the request that puts it to sleep."""
        ...

    def wake(self) -> tuple[str, str]:
        """Return the request that wakes it."""
        ...

    def asleep(self) -> tuple[str, str]:
        """Return the request that tells whether it sleeps."""
        ...


@runtime_checkable
class Limited(Protocol):
    """An engine that can do less than others that read the same models."""

    def lacks(
        self, bundle: Bundle | None, info: ModelInfo | None, parallel: int | None, /
    ) -> str | None:
        """Return what it cannot do of what this model and so many requests need, None if nothing.

        The words complete "it …". Such an engine is used only where no other is installed.
        """
        ...


@runtime_checkable
class Slotted(Protocol):
    """An engine that keeps a separate context for each simultaneous request."""

    def slots(self, parallel: int | None, /) -> int:
        """Return the number of slots if `parallel` are asked for (None: the engine decides)."""
        ...


@runtime_checkable
class Drafting(Protocol):
    """An engine that generates faster with a draft model, if that guesses well."""

    def drafts(self, bundle: Bundle, mode: Mode, /) -> bool:
        """Tell whether it would use a draft model for this model."""
        ...


@runtime_checkable
class Splitting(Protocol):
    """An engine that can put some of a model's layers on a GPU; others put all there, or none."""

    @property
    def splits_layers(self) -> bool:
        """Whether it can."""
        ...


@runtime_checkable
class PromptCaching(Protocol):
    """An engine that can keep conversations in RAM after they have lost their slot."""

    @property
    def caches_prompts(self) -> bool:
        """Whether it does."""
        ...


@runtime_checkable
class SavesSlots(Protocol):
    """An engine that can save a conversation from its slot to a file, and restore it.

    One that was started with `Settings.slot_dir` names its routes in its traits.
    """

    @property
    def saves_slots(self) -> bool:
        """Whether it can."""
        ...


@runtime_checkable
class OffloadsBlocks(Protocol):
    """An engine that moves the blocks of its cache from a GPU to RAM and to files by itself.

    One that was started with `Settings.slot_dir` has `Settings.prompt_cache_bytes` of RAM for that,
    in /dev/shm. It removes no file, and reads anew what is gone.
    """

    @property
    def offloads_blocks(self) -> bool:
        """Whether it can."""
        ...


@runtime_checkable
class Threaded(Protocol):
    """An engine whose arguments set the number of threads on the CPU."""

    @property
    def sets_threads(self) -> bool:
        """Whether its arguments include `Settings.threads` and `batch_threads`."""
        ...


@runtime_checkable
class Adapting(Protocol):
    """An engine that can be started with LoRA adapters; one without this takes none."""

    @property
    def max_adapters(self) -> int:
        """How many it takes."""
        ...


@runtime_checkable
class Inspecting(Protocol):
    """An engine that can show what is inside a model while it answers, and be steered.

    One that was started with `Settings.inspect` names an `Inspector` in its traits.
    """

    def lacks_for_inspection(self, installation: Installation, /) -> str | None:
        """Return what has to be installed before it can, None if nothing.

        The words complete "it needs …", and say how to get it.
        """
        ...


@runtime_checkable
class Attachable(Protocol):
    """An engine whose servers run already: vllama watches them but never starts or stops them."""

    def attach(self, bundle: Bundle | None = None, /) -> tuple[tuple[Endpoint, ...], str]:
        """Return the endpoints that have `bundle` (None: all), and the path that is polled.

        An endpoint that answers there with any status below 500 lives.
        """
        ...


def find_servers(
    found: DiscoveredEngines, bundle: Bundle | None = None
) -> tuple[tuple[Endpoint, ...], str]:
    """Return the endpoints of running servers, as `Attachable.attach`; there may be none."""
    for name in found.installations:
        engine = found.engines[name]
        if isinstance(engine, Attachable):
            return engine.attach(bundle)
    return (), ""
