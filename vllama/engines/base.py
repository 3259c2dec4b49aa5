"""The contract of an engine: one declarative file, found by entry point.

An adapter is an object with these attributes and pure functions. It names the vendor's server,
says how it is launched and what it takes; the core never asks which engine it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from vllama.chat.engine.traits import Traits
from vllama.hardware.types import Platform
from vllama.models.types import Bundle, Capability, Format, ModelInfo
from vllama.supervise.spec import Endpoint, Fault, LaunchSpec


class Mode(StrEnum):
    """What an instance is started for."""

    CHAT = "chat"
    EMBED = "embed"


class Origin(StrEnum):
    """Where an engine was found, in words for people."""

    GIVEN = "the path in the settings"
    OWN = "its own environment"
    HERE = "this environment"
    PATH = "PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where engines may be (`find.find_package` looks there for all adapters).

    `environments` has a folder for each engine that was installed by us, `paths` what the user
    named, by the engine's name. `search` is written as PATH is; None: PATH itself.
    """

    environments: Path | None = None
    paths: Mapping[str, Path] = field(default_factory=dict)
    search: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An engine found on this machine.

    `python` runs it as a module, `executable` directly; one of them is set, or both.
    `offloads` tells whether this build can use an accelerator.
    """

    engine: str
    version: str
    python: Path | None = None
    executable: Path | None = None
    offloads: bool = False
    origin: Origin = Origin.HERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Why an engine is not there, and the command that installs it.

    `installable` False: that command would fail here, for want of a compiler, say.
    """

    engine: str
    reason: str
    hint: str
    installable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to launch, decided by the planner.

    Context in tokens; `gpu_layers` -1 means all. `kv_cache_type` is f16, q8_0 or q4_0, None the
    engine's own. `parallel` is how many requests at once the user wants at most. `capabilities` are
    the model's; `ranks`: it scores documents instead of making vectors; `chat_template` is the one
    in its file, or with `template_family` one that the file lacks, None: there is none, or it is
    not known yet; `turn_end` is then the token that ends an answer, and its number.
    `prompt_cache_bytes` is the most that conversations without a slot may take of the RAM.
    `tuned_args` and `tuned_env` are what an engine's own `tune` decided; `extra_args` are the
    user's and come last, so that they win.
    """

    mode: Mode
    alias: str
    context_length: int
    gpu_layers: int = 0
    threads: int = 1
    batch_threads: int = 1
    flash_attention: bool = True
    kv_cache_type: str | None = None
    parallel: int | None = None
    logprobs: bool = False
    ranks: bool = False
    stall_timeout_s: float | None = 300.0
    capabilities: frozenset[Capability] = frozenset({Capability.COMPLETION})
    chat_template: str | None = None
    template_family: str | None = None
    turn_end: tuple[str, int] | None = None
    prompt_cache_bytes: int = 0
    tuned_args: tuple[str, ...] = ()
    tuned_env: tuple[tuple[str, str], ...] = ()
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePattern:
    """A line of the engine's output that tells why it failed.

    `pattern` is searched in each of the last lines, newest first (or `oldest` first). `cause` and
    `hint` may use its groups as `{0}`, `{1}` … `retryable`: the same start may go well another
    time. `fault` is the kind of failure where another plan may help (`plan.ladder`): MEMORY, too
    little of it; ARCHITECTURE, the engine cannot serve such a model; QUANTISATION, it cannot read
    its number format; MISMATCH, the build does not suit this machine or is not whole; PORT, it was
    taken.
    """

    pattern: str
    cause: str
    hint: str | None = None
    retryable: bool = False
    fault: Fault | None = None
    oldest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Memory constants of an engine.

    `fixed_bytes`: the process without a model. `logits_rows`: rows of float32 logits it keeps
    (llama.cpp's micro-batch). `context_multiple`: the context is rounded up to a multiple of this.
    `whole_windows`: layers with a sliding window get a cache for the whole context all the same.
    `logprobs_take_memory`: log probabilities want the logits of every position.
    """

    fixed_bytes: int = 0
    logits_rows: int = 512
    context_multiple: int = 1
    whole_windows: bool = True
    logprobs_take_memory: bool = True


class Engine(Protocol):
    """Declarative adapter of one official server."""

    name: str
    aliases: tuple[str, ...]
    title: str
    formats: tuple[Format, ...]
    modes: tuple[Mode, ...]
    overhead: Overhead
    failures: tuple[FailurePattern, ...]

    def find(self, places: Places) -> Installation | Missing:
        """Look for it on this machine; may run a short command, never raises.

        An engine that is found in a way of its own may do without the argument.
        """
        ...

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Return how well it suits `platform` (higher is better, 0: not at all) and why."""
        ...

    def supports(self, platform: Platform, info: ModelInfo) -> str | None:
        """Return None if it can serve a model like `info` here, else the reason why not."""
        ...

    def launch(
        self,
        bundle: Bundle,
        settings: Settings,
        installation: Installation,
        endpoint: Endpoint,
        environ: Mapping[str, str],
    ) -> LaunchSpec:
        """Build the start of one process. Pure: same arguments, same result."""
        ...

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what a process launched like this takes and gives."""
        ...


@runtime_checkable
class Configurable(Protocol):
    """An engine that settings make a different one of."""

    def configured(self, options: Mapping[str, object]) -> Engine:
        """Return the engine for these settings."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be served, before an engine's own `tune` has settled its memory.

    `context_length` is in tokens; `context_asked` tells that somebody asked for that much, so that
    it must not shrink. `parallel` requests at once are asked for; where nobody does, there may be
    `at_most` so many. `reserve_bytes` is to be left free, on each GPU or of the RAM. `eager`: an
    earlier start ran out of memory, so do without what makes it faster and takes memory of its own.
    """

    platform: Platform
    info: ModelInfo
    installation: Installation
    mode: Mode
    context_length: int
    context_asked: bool
    on_gpu: bool
    parallel: int | None
    kv_cache_type: str | None
    reserve_bytes: int
    extra_args: tuple[str, ...]
    at_most: int | None = None
    eager: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What an engine's `tune` decided; sizes in bytes, for all its processes together.

    `reasons` are sentences for the plan, with the numbers.
    """

    context_length: int
    args: tuple[str, ...]
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    fixed_bytes: int
    reasons: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@runtime_checkable
class Tunable(Protocol):
    """An engine with memory knobs and a memory layout of its own."""

    def tune(self, wish: Wish) -> Tuning:
        """Decide its knobs from the model and the memory that is free. Pure.

        What does not fit is not refused here: the sizes say so. Raises NoPlan for arguments of the
        user that cannot be met.
        """
        ...


@runtime_checkable
class Sleeping(Protocol):
    """An engine that can give its memory back without ending, and wakes faster than it starts.

    `sleep` and `wake` are (method, path) of requests without a body, with the endpoint's key, that
    return 200 when it is done; `asleep` is the (method, path) that answers `{"is_sleeping": bool}`.
    """

    def sleeps(self, settings: Settings) -> bool:
        """Tell whether a process launched like this can sleep."""
        ...

    def sleep(self) -> tuple[str, str]:
        """Return the request that puts it to sleep."""
        ...

    def wake(self) -> tuple[str, str]:
        """Return the request that wakes it."""
        ...

    def asleep(self) -> tuple[str, str]:
        """Return the request that tells which it is."""
        ...


@runtime_checkable
class Limited(Protocol):
    """An engine that can do less than others that read the same models."""

    def lacks(
        self, bundle: Bundle | None, info: ModelInfo | None, parallel: int | None
    ) -> str | None:
        """Return what is missing for this model and so many requests at once, None: nothing.

        It completes "it …". Such an engine is taken if no other is there.
        """
        ...


@runtime_checkable
class Slotted(Protocol):
    """An engine that keeps a context for each of the requests that it answers at once."""

    def slots(self, parallel: int | None) -> int:
        """Return for how many, if `parallel` are asked for (None: as many as it likes)."""
        ...


@runtime_checkable
class Splitting(Protocol):
    """An engine that can put some of a model's layers on a GPU; others put all there, or none."""

    splits_layers: bool


@runtime_checkable
class PromptCaching(Protocol):
    """An engine that may keep conversations in RAM when they lose their slot."""

    caches_prompts: bool


@runtime_checkable
class Threaded(Protocol):
    """An engine that is told with how many threads to compute on the CPU.

    `sets_threads`: its command line has `Settings.threads` and `batch_threads`.
    """

    sets_threads: bool


@runtime_checkable
class Adapting(Protocol):
    """An engine that can be started with LoRA adapters; one without this takes none."""

    max_adapters: int


@runtime_checkable
class Attachable(Protocol):
    """An engine whose servers run already: watched, never started or stopped."""

    def attach(self) -> tuple[tuple[Endpoint, ...], str]:
        """Return where they are, and the path that tells whether one answers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of looking for all engines: those that are here and those that are not."""

    engines: Mapping[str, Engine] = field(default_factory=dict)
    installations: Mapping[str, Installation] = field(default_factory=dict)
    missing: Mapping[str, Missing] = field(default_factory=dict)
