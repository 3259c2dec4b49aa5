"""Shared driver of the adapters of llama.cpp's servers.

Each server is an instance (an `ENGINE` in `llama_cpp_python` and `llama_server`): a table of flags,
a set of traits and a few values. xllamacpp needs none of its own: it is llama-server inside a
wheel, and `xllamacpp_child` starts it with the same command line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from vllama.base.errors import EngineStartFailed, NoPlan
from vllama.chat.engine.traits import Traits
from vllama.chat.grammar_schema import LLGUIDANCE
from vllama.engines.argv import has_flag
from vllama.engines.base import Engine, Installation, Missing, Mode, SearchPaths, Settings
from vllama.engines.child_env import build_child_env
from vllama.engines.devices import Device, LoadReport, parse_devices
from vllama.engines.failures import compile_failures, make_patterns
from vllama.engines.llamacpp.output import read_load
from vllama.engines.request_body import add_fields
from vllama.machine.probe import run_command
from vllama.machine.types import Platform
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.supervise.spec import SOCKET, Endpoint, Exit, Fault, Grace, HttpProbe, LaunchSpec

MIB = 1024 * 1024
FAMILY_NAMES = ("llama.cpp", "llamacpp", "llama-cpp")
"""The names that stand for whichever of its servers is the best one here."""
BACKENDS = {
    "*cuda*": "CUDA", "*hip*": "ROCm", "*vulkan*": "Vulkan", "*metal*": "Metal", "*sycl*": "SYCL",
}  # fmt: skip
"""File names of the libraries that use an accelerator, and by what they reach it."""


def find_backend(*folders: Path) -> str:
    """Return by what the libraries in these folders reach an accelerator, empty if by nothing."""
    if sys.platform == "darwin":
        return "Metal"
    return next(
        (
            name
            for pattern, name in BACKENDS.items()
            if any(next(folder.glob(pattern), None) for folder in folders)
        ),
        "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Everything that the value of a flag may depend on."""

    bundle: Bundle
    settings: Settings
    installation: Installation
    endpoint: Endpoint
    slots: int

    @property
    def embeds(self) -> bool:
        """True if the process is started for embeddings."""
        return self.settings.mode is Mode.EMBED

    @property
    def batch(self) -> int | None:
        """Tokens of one batch, None for the default; an input to embed has to fit into one."""
        return self.settings.context_length if self.embeds else None


Flag = tuple[str, Callable[[Start], object]]
"""A flag and its value: None omits it, True passes it without a value, a tuple repeats it."""


def render_flags(flags: Sequence[Flag], start: Start) -> Iterator[str]:
    """Yield the arguments of a command line."""
    for name, value_of in flags:
        value = value_of(start)
        for item in value if isinstance(value, tuple) else (value,):
            if item is None:
                continue
            yield name
            if item is not True:
                yield str(item)


@dataclass(frozen=True, kw_only=True)
class LlamaCpp(Engine):
    """Adapter of one of llama.cpp's servers.

    `locate` finds its installation and `program` gives the first words of its command line.
    `default_slots` is the number of simultaneous requests unless the user sets one, `most_slots`
    the limit (None: none); each slot has a context of its own. `reads_projectors`: it accepts
    images if the model has a projector. `takes_draft`: it can use a draft model.
    `logprobs_at_start`: it returns log probabilities only if it was started for them. `rerank_path`
    is its route for models that rank. `leaves_thinking` tells whether it does not split off the
    thinking of a chat template. `end_turn_at` returns the fields of a request that end the answer
    at a token (text and number), where that is not set at the start. `by_platform` holds preference
    and reason for Apple silicon, another macOS, and anything else. `key_variable` carries the key,
    since every user can read a command line. `takes_sockets`: `--host` may be a Unix socket's path.
    """

    locate: Callable[[SearchPaths, str], Installation | Missing]
    program: Callable[[Installation], tuple[str, ...]]
    flags: tuple[Flag, ...]
    base_traits: Traits
    probe: HttpProbe
    key_variable: str
    by_platform: tuple[tuple[int, str], tuple[int, str], tuple[int, str]]
    splits_layers: bool = True
    grace: Grace = Grace(term_s=1.0, second_term_s=1.0, kill_s=5.0)
    formats: tuple[Format, ...] = (Format.GGUF,)
    modes: tuple[Mode, ...] = (Mode.CHAT, Mode.EMBED)
    family_names: tuple[str, ...] = FAMILY_NAMES
    sets_threads: bool = True
    default_slots: int = 1
    most_slots: int | None = None
    reads_projectors: bool = False
    takes_draft: bool = False
    logprobs_at_start: bool = False
    keeps_connections: bool = True
    takes_sockets: bool = False
    rerank_path: str | None = None
    leaves_thinking: Callable[[str | None], bool] = lambda template: False
    end_turn_at: Callable[[str, int], Mapping[str, object]] = lambda token, number: {}

    def find(self, search_paths: SearchPaths) -> Installation | Missing:
        """Look for it in all the usual places."""
        return self.locate(search_paths, self.name)

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Return how well it suits the platform, from the table `by_platform`."""
        if platform.os == "darwin":
            return self.by_platform[0 if platform.accelerators else 1]
        return self.by_platform[2]

    def refuses(self, platform: Platform, info: ModelInfo) -> str | None:
        """Refuse files without weights, and those that only Ollama's own loader reads."""
        if info.weights_bytes == 0:
            return "the file has no weights, only a vocabulary"
        return explain_ollama_only(info)

    def lacks(
        self, bundle: Bundle | None, info: ModelInfo | None, parallel: int | None
    ) -> str | None:
        """Return the reason why it cannot serve this model with so many parallel requests."""
        if self.most_slots is not None and (parallel or 1) > self.most_slots:
            count = "one request" if self.most_slots == 1 else f"{self.most_slots} requests"
            return f"runs {count} at a time"
        if bundle and bundle.projector is not None and not self.reads_projectors:
            return "does not support images"
        if bundle and len(bundle.adapters) > self.max_adapters:
            return f"supports at most {self.max_adapters} adapter"
        if info and info.ranks and self.rerank_path is None:
            return "does not support reranking"
        return None

    def drafts(self, bundle: Bundle, mode: Mode) -> bool:
        """Tell whether there is a draft model to use; what makes vectors generates nothing."""
        most = bundle.parameters.get("draft_num_predict")
        wanted = not isinstance(most, int) or most > 0
        return self.takes_draft and bundle.draft is not None and mode is Mode.CHAT and wanted

    def slots(self, parallel: int | None) -> int:
        """Return the number of slots, each with a context of its own."""
        wanted = parallel or self.default_slots
        return min(wanted, self.most_slots or wanted)

    def launch(
        self,
        bundle: Bundle,
        settings: Settings,
        installation: Installation,
        endpoint: Endpoint,
        environ: Mapping[str, str],
    ) -> LaunchSpec:
        """Build the start of one process, passing every default that matters explicitly."""
        has_door = not self.takes_sockets or has_flag(settings.extra_args, "--host")
        keeps, socket = self.keeps_connections, "" if has_door else SOCKET
        endpoint = msgspec.structs.replace(endpoint, keeps_connections=keeps, socket=socket)
        start = Start(
            bundle=bundle,
            settings=settings,
            installation=installation,
            endpoint=endpoint,
            slots=self.slots(settings.parallel),
        )
        # a debugger's backtrace takes seconds and pushes the telling line out of the last ones
        extra = {"GGML_NO_BACKTRACE": environ.get("GGML_NO_BACKTRACE", "1")}
        extra["LLAMA_ARG_SSE_PING_INTERVAL"] = "-1"  # a ping would be a sign of life of a hung one
        extra["LLAMA_ARG_FIT"] = "off"  # it loads the model twice, and the plan is made
        if "OMP_WAIT_POLICY" not in environ:
            # A thread that waits for the others spins for about 10 µs and then sleeps. This is as
            # fast as the default (hundreds of µs) on idle cores, twice as fast on busy ones, and it
            # leaves the core free for the server's own work between two tokens.
            extra["GOMP_SPINCOUNT"] = environ.get("GOMP_SPINCOUNT", "1000")
        if endpoint.api_key:
            extra[self.key_variable] = endpoint.api_key
        cause = f"it lost RPC server {' or '.join(settings.rpc)}"  # its log does not tell which
        lost = make_patterns(("Remote RPC server crashed", cause, None, Fault.REMOTE))
        own = (*self.program(installation), *render_flags(self.flags, start))
        return LaunchSpec(
            name=settings.alias,
            argv=(*own, *settings.extra_args),
            env=build_child_env(environ, extra=extra),
            cwd=Path("/"),
            endpoint=endpoint,
            probe=self.probe,
            # a busy server may finish its answer before it obeys, so the waits are short
            grace=self.grace,
            stall_timeout_s=settings.stall_timeout_s,
            diagnose=compile_failures((*lost, *self.failures)),
            silence=Fault.REMOTE if settings.rpc else None,
        )

    def list_remote(self, installation: Installation, server: str) -> Sequence[Device]:
        """Return the devices that have the address of the server as their description."""
        if "--rpc" not in dict(self.flags):
            return super().list_remote(installation, server)
        quietly = ("env", "GGML_NO_BACKTRACE=1")  # a debugger's takes seconds
        argv = (*quietly, *self.program(installation), "--rpc", server, "--list-devices")
        output = run_command(argv, timeout_s=5.0)
        if devices := [one for one in parse_devices(output.text) if one.title == server]:
            return devices
        ended = Exit(code=output.status, output=tuple(output.text.splitlines()))
        found = compile_failures(self.failures)(ended)
        if found.fault is Fault.MISMATCH:
            raise NoPlan(f"cannot use RPC servers: {found.cause}", hint=found.hint)
        raise EngineStartFailed(f"RPC server {server} does not respond")

    def read_load(self, lines: Sequence[str], settings: Settings) -> LoadReport | None:
        """Return where the model lies by the log of a load."""
        return read_load(lines) or (LoadReport() if settings.rpc else None)

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Return the base traits, adjusted to this model and these settings."""
        embeds = settings.mode is Mode.EMBED
        base = self.base_traits
        if settings.version.startswith("xllamacpp"):  # which is built with it
            base = replace(base, schema_compiler=LLGUIDANCE)
        return replace(
            base,
            context_length=settings.context_length,
            max_concurrency=self.slots(settings.parallel),
            shifts_context=self.base_traits.shifts_context
            and not embeds
            and not has_flag(settings.extra_args, "--no-context-shift"),
            takes_logprobs=settings.logprobs or not self.logprobs_at_start,
            takes_images=self.reads_projectors and bundle.projector is not None,
            rerank_path=self.rerank_path if embeds else None,
            slots=self.base_traits.slots
            if settings.slot_dir is not None
            and not has_flag(settings.extra_args, "--dry-multiplier", "--slot-save-path")
            else None,
            splits_reasoning=self.base_traits.splits_reasoning
            and not self.leaves_thinking(settings.chat_template),
            finish_body=partial(add_fields, defaults=self.end_turn_at(*settings.turn_end))
            if settings.turn_end and not embeds
            else None,
        )


# Ollama's library holds models that only its own, patched loader reads: with other names of
# architectures, or with the image or sound encoder inside the model's file. Stock llama.cpp refuses
# them ("unknown model architecture", "wrong number of tensors"). The names are those of Ollama's
# llama/compat; what is missing here shows when the engine loads the file.

# architecture in Ollama's files → name of the same model in stock files
RENAMED = {
    "gptoss": "gpt-oss",
    "qwen25vl": "qwen2vl",
    "mllama": "mllama, which llama.cpp does not support",
    "olmo3": "olmo2",
    "deepseekocr": "deepseek2-ocr",
    "glmocr": "glm4",
    "glm4moelite": "deepseek2",
    "nemotron_h_omni": "nemotron_h",
}
ENCODERS = ("v.", "mm.", "a.", "s.")
"""How the names of an encoder's tensors begin; stock files have them in the mmproj file."""
OWN_ENCODERS = frozenset({"clip"})


def explain_ollama_only(info: ModelInfo) -> str | None:
    """Return why stock llama.cpp cannot load a file like `info`; None if nothing is known."""
    if name := RENAMED.get(info.architecture):
        return (
            f"the file was made for Ollama's own engine: its architecture is "
            f"'{info.architecture}', not {name}"
        )
    inside = next((tensor for tensor, _, _ in info.tensors if tensor.startswith(ENCODERS)), None)
    if inside is not None and info.architecture not in OWN_ENCODERS:
        return (
            "the file was made for Ollama's own engine: it contains the image or audio encoder "
            f"('{inside}') instead of a separate mmproj file"
        )
    return None
