"""The contract between vllama and an engine: one object per engine, found by entry point.

An adapter names the vendor's server, says how to launch it and declares what it accepts. Its
functions are pure except `find`, and the core never asks which engine it is talking to.
CONTRIBUTING.md walks through a complete adapter; `vllama.engines.testing` checks one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from vllama.base.errors import NoPlan
from vllama.chat.engine.traits import Traits
from vllama.engines.devices import Device, LoadReport
from vllama.engines.recipe import Recipe
from vllama.machine.types import Platform
from vllama.models.types import Bundle, Capability, Format, ModelInfo
from vllama.supervise.spec import Endpoint, Fault, LaunchSpec


class Mode(StrEnum):
    """Purpose of an engine process."""

    CHAT = "chat"
    EMBED = "embed"


class Origin(StrEnum):
    """Origin of an installed engine, as shown to users."""

    GIVEN = "the path in the settings"
    OWN = "its own environment"
    HERE = "this environment"
    PATH = "PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPaths:
    """Folders with engines (`locate.find_package` searches them for all adapters).

    `environments` holds one folder per engine that vllama installed. `paths` maps an engine's name
    to the path that the user gave for it. `search` is written like PATH; None means PATH itself.
    """

    environments: Path | None = None
    paths: Mapping[str, Path] = field(default_factory=dict)
    search: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An engine found on this machine.

    `python` runs it as a module and `executable` runs it directly; at least one of them is set.
    `command` are the first arguments of an executable that has commands, such as `serve`.
    `offloads` says whether this build can use an accelerator, `backend` by what ("Vulkan"), empty
    where that is not told, and `devices` are the GPUs that it lists itself. `plugins` are the
    packages in its environment that its adapter asks for.
    `parsers` are those of its own, by kind and name, None where they are not known.
    """

    engine: str
    version: str
    python: Path | None = None
    executable: Path | None = None
    command: tuple[str, ...] = ()
    offloads: bool = False
    backend: str = ""
    devices: tuple[Device, ...] = ()
    origin: Origin = Origin.HERE
    plugins: tuple[str, ...] = ()
    parsers: frozenset[tuple[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Why an engine is not available, and how to install it.

    `installable` is False where that would fail on this machine, for example without a compiler.
    """

    engine: str
    reason: str
    hint: str
    installable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Launch settings of one process, as the planner decided.

    `context_length` is in tokens per request; `gpu_layers` -1 means all layers, and of the first
    `cpu_moe` layers the experts are in RAM. `kv_cache_type` is
    f16, q8_0, q4_0 or fp8, None for the engine's default. `parallel` is the number of simultaneous
    requests that the user asked for. `ranks` marks a model that scores documents,
    `draft_kind` is that of its draft model.
    `chat_template` is the template in the model's files, or with `template_family` the one that
    vllama supplies because the files have none; `turn_end` is then the token that ends an answer,
    as text and number. `prompt_cache_bytes` limits the RAM for conversations that have lost their
    slot. `gpus` are the indices of the GPUs that it is shown, the one with the most room first, and
    `gpu_shares` the layers that each holds; `devices` are the engine's names of them where it has
    to be told (`engines.devices.name_devices`), `rpc` the servers of the remote ones
    (`Engine.list_remote`). `slot_dir` is where the engine saves slots (`Engine.saves_slots`), with
    `keeps_conversations` for longer than it runs. `inspect`: requests may look inside the model
    (`Engine.inspects`). `version` is the engine's. `tuned_args` are what the engine's own `tune`
    decided; `extra_args` are the user's and come last, so that they win.
    """

    mode: Mode
    alias: str
    context_length: int
    gpu_layers: int = 0
    cpu_moe: int = 0
    threads: int = 1
    batch_threads: int = 1
    flash_attention: bool = True
    kv_cache_type: str | None = None
    parallel: int | None = None
    logprobs: bool = False
    ranks: bool = False
    inspect: bool = False
    draft_kind: str | None = None
    stall_timeout_s: float | None = 300.0
    capabilities: frozenset[Capability] = frozenset({Capability.COMPLETION})
    chat_template: str | None = None
    template_family: str | None = None
    turn_end: tuple[str, int] | None = None
    prompt_cache_bytes: int = 0
    slot_dir: Path | None = None
    keeps_conversations: bool = False
    gpus: tuple[int, ...] = ()
    gpu_shares: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    rpc: tuple[str, ...] = ()
    version: str = ""
    tuned_args: tuple[str, ...] = ()
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePattern:
    """A line of the engine's output that explains why it failed.

    `pattern` is searched in each of the last lines, newest first (or `oldest` first). `cause` and
    `hint` may use its groups as `{0}`, `{1}` and so on. `retryable` means that the same start may
    succeed another time. `fault` names the kinds of failure that another plan can avoid
    (`vllama.plan.ladder`): MEMORY, not enough of it; ARCHITECTURE, the engine cannot serve such a
    model; QUANTIZATION, it cannot read the number format; MISMATCH, the build does not suit this
    machine or is incomplete; DEVICE, it finds no usable GPU; REMOTE, an RPC server is lost; PORT,
    another program had taken the port.
    """

    pattern: str
    cause: str
    hint: str | None = None
    retryable: bool = False
    fault: Fault | None = None
    oldest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Memory of an engine besides weights and context.

    `fixed_bytes` is the process without a model. `logits_rows` is the number of rows of float32
    logits that it keeps, `batch_rows` that of tokens whose intermediate results it holds at once
    (llama.cpp's micro-batch; 0: they are part of `fixed_bytes`). `context_multiple`: the context is
    rounded up to a multiple of this. `whole_windows`: layers with a sliding window still get a
    cache for the whole context. `logprobs_take_memory`: log probabilities need the logits of every
    position.
    `repacks`: on a CPU it keeps some weights a second time (`plan.fit.count_second_copy`).
    """

    fixed_bytes: int = 0
    logits_rows: int = 512
    batch_rows: int = 0
    context_multiple: int = 1
    whole_windows: bool = True
    logprobs_take_memory: bool = True
    repacks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """An estimate, in bytes."""

    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    fixed_bytes: int
    # of the RAM in any case, taken as conversations come, and only if there is room: no part of
    # what the model needs
    prompt_cache_bytes: int = 0
    # weights that are in memory a second time: they make room when memory runs short
    copied_bytes: int = 0
    on_gpu: bool = False  # the memory of GPUs, but for what is in RAM
    # what each GPU holds, by pool; empty: one part, shared by the GPUs if `on_gpu`
    gpu_parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def ram_bytes(self) -> int:
        """Bytes in RAM."""
        if not self.on_gpu:
            return self.total_bytes
        return self.total_bytes - sum(self.gpu_parts.values()) if self.gpu_parts else 0

    @property
    def total_bytes(self) -> int:
        """Bytes required, as `serve`, `plan` and the web UI show them."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes + self.fixed_bytes

    def find_limit(self, spare_bytes: int | None) -> int | None:
        """Return how much RAM is too much: twice the estimate, at least `spare_bytes` beyond it.

        What is on GPUs comes on top, since it goes there through RAM. None: no limit, as where the
        estimate does not tell the part in RAM.
        """
        if spare_bytes is None or (self.on_gpu and not self.gpu_parts):
            return None
        ram_bytes = self.ram_bytes + self.copied_bytes + self.prompt_cache_bytes
        return ram_bytes + max(ram_bytes, spare_bytes) + sum(self.gpu_parts.values())

    @property
    def claimed_bytes(self) -> int:
        """Bytes of RAM that a load reserves beyond its need; beside a GPU none are reserved."""
        return 0 if self.on_gpu else self.prompt_cache_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRequest:
    """Request to an engine's `tune`: the model to serve, before memory is decided.

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
    """Decision of an engine's `tune`: `settings` with its context, GPUs and `tuned_args`.

    `memory` is that of all its processes together. `reasons` are sentences for the plan, with the
    numbers.
    """

    settings: Settings
    memory: Memory
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """The adapter of one server: values, and functions that are pure except `find`.

    What has a default an adapter states, or overrides, where its server can do more than others.
    """

    # name in commands and settings: lower case, no spaces, not that of another engine
    name: str
    title: str  # name in sentences for users
    aliases: Sequence[str] = ()  # other names that users may type
    # names of several engines: they stand for whichever of them is the best one here
    family_names: Sequence[str] = ()
    formats: Sequence[Format] = (Format.SAFETENSORS,)  # of files that it reads
    modes: Sequence[Mode] = (Mode.CHAT,)  # what its processes can be started for
    overhead: Overhead = Overhead()
    # lines of its output that explain a failed start, most telling first
    failures: Sequence[FailurePattern] = ()
    install: Recipe = Recipe()

    # it can put some of a model's layers on a GPU; others put all there, or none
    splits_layers: bool = False
    splits_experts: bool = False  # its program can leave the experts of layers on a GPU in RAM
    sets_threads: bool = False  # by `Settings.threads` and `batch_threads`
    max_adapters: int = 0  # LoRA adapters that it can be started with
    caches_prompts: bool = False  # it keeps conversations in RAM after they have lost their slot
    # RAM beyond its plan that a process may take before it is ended; None: that was not measured
    spare_bytes: int | None = None
    # it can save a conversation from its slot to a file, and restore it; one that was started with
    # `Settings.slot_dir` names its routes in its traits
    saves_slots: bool = False
    # it moves the blocks of its cache from a GPU to RAM and to files by itself: one that was
    # started with `Settings.slot_dir` has `Settings.prompt_cache_bytes` of RAM for that, in
    # /dev/shm. It removes no file, and reads anew what is gone
    offloads_blocks: bool = False

    # -- what each adapter states --

    @abstractmethod
    def find(self, search_paths: SearchPaths, /) -> Installation | Missing:
        """Look for the engine on this machine; may run a short command, never raises."""

    @abstractmethod
    def preference(self, platform: Platform, /) -> tuple[int, str]:
        """Return how well it suits `platform` and why; 0 means that users have to name it."""

    @abstractmethod
    def launch(
        self,
        bundle: Bundle,
        settings: Settings,
        installation: Installation,
        endpoint: Endpoint,
        environ: Mapping[str, str],
        /,
    ) -> LaunchSpec:
        """Build the start of one process. Pure: equal arguments give an equal result."""

    @abstractmethod
    def traits(self, bundle: Bundle, settings: Settings, /) -> Traits:
        """Declare what a process that was launched like this accepts and returns. Pure."""

    # -- what it cannot do --

    def refuses(self, platform: Platform, info: ModelInfo, /) -> str | None:
        """Return why it cannot serve a model like `info` here, None if it can."""
        return None

    def lacks(
        self, bundle: Bundle | None, info: ModelInfo | None, parallel: int | None, /
    ) -> str | None:
        """Return abilities of other engines for these models that it lacks; None: none.

        It is about what this model and so many requests need. The words complete "it …". Such an
        engine is used only where no other is installed.
        """
        return None

    # -- what only some can do --

    def configure(self, options: Mapping[str, object], /) -> Engine:
        """Return the adapter for the user's settings. Raises ConfigError."""
        return self

    def slots(self, parallel: int | None, /) -> int | None:
        """Return the number of slots if `parallel` are asked for (None: the engine decides).

        Each keeps a context for one request. None: it has one cache for all requests.
        """
        return None

    def drafts(self, bundle: Bundle, mode: Mode, /) -> bool:
        """Tell whether it would use a draft model for this model."""
        return False

    def list_remote(self, installation: Installation, server: str, /) -> Sequence[Device]:
        """Return the devices of an RPC server. Raises NoPlan; EngineStartFailed if it is down."""
        raise NoPlan(f"cannot use RPC servers with {self.title}")

    def read_load(self, lines: Sequence[str], settings: Settings, /) -> LoadReport | None:
        """Return where the model lies by the log of a load; None if that does not tell. Pure."""
        return None

    def tune(self, request: TuningRequest, /) -> Tuning:
        """Set its memory options from the model and the free memory. Pure.

        A model that does not fit is not refused here: the sizes say so. Raises NoPlan for
        arguments of the user that cannot be met.
        """
        raise NotImplementedError

    def sleeps(self, settings: Settings, /) -> bool:
        """Tell whether a process that was launched like this can sleep.

        It then releases its memory without ending, and wakes faster than it starts.
        """
        return False

    def sleep(self) -> tuple[str, str]:
        """Return method and path of the request that puts it to sleep.

        It has no body, is sent with the endpoint's key, and answered with 200 when it is done.
        """
        raise NotImplementedError

    def wake(self) -> tuple[str, str]:
        """Return the request that wakes it, as `sleep` does."""
        raise NotImplementedError

    def lacks_for_inspection(self, installation: Installation, /) -> str | None:
        """Return the packages to install before it can inspect a model; None: none.

        The words complete "it needs …", and say how to get it. One that was started with
        `Settings.inspect` names an `Inspector` in its traits.
        """
        raise NotImplementedError

    def attach(self, bundle: Bundle | None = None, /) -> tuple[tuple[Endpoint, ...], str]:
        """Return the endpoints that have `bundle` (None: all), and the path that is polled.

        Its servers run already: vllama watches them but never starts or stops them. An endpoint
        that answers there with any status below 500 lives.
        """
        raise NotImplementedError

    @property
    def tunes(self) -> bool:
        """True if it has a `tune` of its own."""
        return type(self).tune is not Engine.tune

    @property
    def inspects(self) -> bool:
        """True if it can show what is inside a model while it answers, and be steered."""
        return type(self).lacks_for_inspection is not Engine.lacks_for_inspection

    @property
    def attaches(self) -> bool:
        """True if its servers run already."""
        return type(self).attach is not Engine.attach


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredEngines:
    """All engines that vllama knows: where each is installed, or why it is missing.

    `broken` holds adapters that could not be used at all, by name, with the reason.
    """

    engines: Mapping[str, Engine] = field(default_factory=dict)
    installations: Mapping[str, Installation] = field(default_factory=dict)
    missing: Mapping[str, Missing] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)

    def find_servers(self, bundle: Bundle | None = None) -> tuple[tuple[Endpoint, ...], str]:
        """Return the endpoints of running servers, as `Engine.attach`; there may be none."""
        for name in self.installations:
            if self.engines[name].attaches:
                return self.engines[name].attach(bundle)
        return (), ""
