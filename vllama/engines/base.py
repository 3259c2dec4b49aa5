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

from vllama.hardware.types import Platform
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.supervise.spec import Endpoint, LaunchSpec
from vllama.translate.traits import Traits


class Mode(StrEnum):
    """What an instance is started for."""

    CHAT = "chat"
    EMBED = "embed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An engine found on this machine.

    `python` runs it as a module, `executable` directly; one of them is set.
    `offloads` tells whether this build can use an accelerator.
    """

    engine: str
    version: str
    python: Path | None = None
    executable: Path | None = None
    offloads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Why an engine is not there, and the command that installs it."""

    engine: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to launch, decided by the planner.

    Context in tokens; `gpu_layers` -1 means all. `kv_cache_type` is f16, q8_0 or q4_0, None the
    engine's own. `parallel` is how many requests at once the user wants at most.
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
    stall_timeout_s: float | None = 300.0
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePattern:
    """A line of the engine's output that tells why it failed.

    `pattern` is searched in each of the last lines, newest first. `cause` and `hint` may use
    its groups as `{0}`, `{1}` … `retryable`: another start may go well.
    """

    pattern: str
    cause: str
    hint: str | None = None
    retryable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Memory constants of an engine.

    `fixed_bytes`: the process without a model. `logits_rows`: rows of float32 logits it keeps
    (llama.cpp's micro-batch). `context_multiple`: the context is rounded up to a multiple of this.
    `whole_windows`: layers with a sliding window get a cache for the whole context all the same.
    """

    fixed_bytes: int = 0
    logits_rows: int = 512
    context_multiple: int = 1
    whole_windows: bool = True


class Engine(Protocol):
    """Declarative adapter of one official server."""

    name: str
    aliases: tuple[str, ...]
    title: str
    formats: tuple[Format, ...]
    modes: tuple[Mode, ...]
    overhead: Overhead
    failures: tuple[FailurePattern, ...]

    def find(self) -> Installation | Missing:
        """Look for it on this machine; may run a short command, never raises."""
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
