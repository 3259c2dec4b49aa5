"""The driver of llama.cpp's servers: what they share is here, what sets one apart is its row.

A row (an `ENGINE` in `llama_cpp_python` and `llama_server`) is a table of flags, a set of traits
and a few capabilities. The third server, xllamacpp, takes the row of `llama_server`: it is the same
program inside a wheel, started by `xllamacpp_child` with the same command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from vllama.chat.engine.traits import Traits
from vllama.engines.argv import has_flag
from vllama.engines.base import (
    FailurePattern,
    Installation,
    Missing,
    Mode,
    Overhead,
    SearchPaths,
    Settings,
)
from vllama.engines.child_env import build_child_env
from vllama.engines.failures import compile_failures
from vllama.engines.recipe import Recipe
from vllama.engines.request_body import add_fields
from vllama.hardware.types import Platform
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.supervise.spec import Endpoint, Grace, HttpProbe, LaunchSpec

MIB = 1024 * 1024
BACKENDS = ("*cuda*", "*hip*", "*vulkan*", "*metal*", "*sycl*")
"""How the libraries are called that use an accelerator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a flag may depend on."""

    bundle: Bundle
    settings: Settings
    endpoint: Endpoint
    slots: int

    @property
    def embeds(self) -> bool:
        """Whether it is started for vectors."""
        return self.settings.mode is Mode.EMBED

    @property
    def batch(self) -> int | None:
        """Tokens of one batch, None: the server's own; an input for a vector has to fit into it."""
        return self.settings.context_length if self.embeds else None


Flag = tuple[str, Callable[[Start], object]]
"""A flag and its value; None leaves it out, True gives it without a value, a tuple repeats it."""


def spell(flags: Sequence[Flag], start: Start) -> Iterator[str]:
    """Yield the words of a command line."""
    for name, value_of in flags:
        value = value_of(start)
        for item in value if isinstance(value, tuple) else (value,):
            if item is None:
                continue
            yield name
            if item is not True:
                yield str(item)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    """Adapter of one of llama.cpp's servers.

    `locate` finds its installation and `program` gives the first words of its command line.
    `default_slots` is the number of simultaneous requests unless the user sets one, `most_slots`
    the limit (None: none); each slot has a context of its own. `reads_projectors`: it accepts
    images if the model has a projector. `logprobs_at_start`: it returns log probabilities only if
    it was started for them. `rerank_path` is its route for models that rank. `leaves_thinking`
    tells whether it does not split off the thinking of a chat template. `end_turn_at` returns the
    fields of a request that end the answer at a token (text and number), where that is not set at
    the start. `by_platform` holds preference and reason for Apple silicon, another macOS, and
    anything else. `key_variable` carries the key, since every user can read a command line.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    locate: Callable[[SearchPaths, str], Installation | Missing]
    program: Callable[[Installation], tuple[str, ...]]
    flags: tuple[Flag, ...]
    base_traits: Traits
    probe: HttpProbe
    key_variable: str
    by_platform: tuple[tuple[int, str], tuple[int, str], tuple[int, str]]
    failures: tuple[FailurePattern, ...]
    install: Recipe
    max_adapters: int
    splits_layers: bool = True
    grace: Grace = Grace(term_s=1.0, second_term_s=1.0, kill_s=5.0)
    formats: tuple[Format, ...] = (Format.GGUF,)
    modes: tuple[Mode, ...] = (Mode.CHAT, Mode.EMBED)
    overhead: Overhead
    sets_threads: bool = True
    caches_prompts: bool = False
    default_slots: int = 1
    most_slots: int | None = None
    reads_projectors: bool = False
    logprobs_at_start: bool = False
    keeps_connections: bool = True
    rerank_path: str | None = None
    leaves_thinking: Callable[[str | None], bool] = lambda template: False
    end_turn_at: Callable[[str, int], Mapping[str, object]] = lambda token, number: {}

    def find(self, search_paths: SearchPaths) -> Installation | Missing:
        """Look for it where all engines are looked for, without importing it."""
        return self.locate(search_paths, self.name)

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Return how well it suits the platform, from the row's table."""
        if platform.os == "darwin":
            return self.by_platform[0 if platform.accelerators else 1]
        return self.by_platform[2]

    def refuses(self, platform: Platform, info: ModelInfo) -> str | None:
        """Refuse what has a vocabulary but no weights, and what only Ollama's loader reads."""
        if info.weights_bytes == 0:
            return "the file has no weights (a vocabulary only)"
        return explain_ollama_only(info)

    def lacks(
        self, bundle: Bundle | None, info: ModelInfo | None, parallel: int | None
    ) -> str | None:
        """Return what it cannot do of what this model and so many requests at once want."""
        if self.most_slots is not None and (parallel or 1) > self.most_slots:
            return f"answers {_times(self.most_slots)} at a time"
        if bundle and bundle.projector is not None and not self.reads_projectors:
            return "shows a model no images"
        if bundle and len(bundle.adapters) > self.max_adapters:
            return f"takes no more than {self.max_adapters} adapter"
        if info and info.ranks and self.rerank_path is None:
            return "does not rank documents"
        return None

    def slots(self, parallel: int | None) -> int:
        """Return how many requests have a context each, for the number that the user wants."""
        return min(
            parallel or self.default_slots, self.most_slots or parallel or self.default_slots
        )

    def launch(
        self,
        bundle: Bundle,
        settings: Settings,
        installation: Installation,
        endpoint: Endpoint,
        environ: Mapping[str, str],
    ) -> LaunchSpec:
        """Build the command line from the row's flags, with every default that matters passed."""
        start = Start(
            bundle=bundle,
            settings=settings,
            endpoint=endpoint,
            slots=self.slots(settings.parallel),
        )
        # a debugger's trace takes seconds and pushes the line that tells out of the last ones
        extra = {"GGML_NO_BACKTRACE": environ.get("GGML_NO_BACKTRACE", "1")}
        if "OMP_WAIT_POLICY" not in environ:
            # a thread that waits for the others spins for some 10 µs, then sleeps: as fast as the
            # default (hundreds of µs) on free cores, twice as fast where others want them, and
            # between two tokens the core is free for what the server does then
            extra["GOMP_SPINCOUNT"] = environ.get("GOMP_SPINCOUNT", "1000")
        if endpoint.api_key:
            extra[self.key_variable] = endpoint.api_key
        words = (*self.program(installation), *spell(self.flags, start), *settings.extra_args)
        return LaunchSpec(
            name=settings.alias,
            argv=words,
            env=build_child_env(environ, extra=extra),
            cwd=Path("/"),
            endpoint=msgspec.structs.replace(endpoint, keeps_connections=self.keeps_connections),
            probe=self.probe,
            # a busy server may finish its answer before it obeys, so do not wait for long
            grace=self.grace,
            stall_timeout_s=settings.stall_timeout_s,
            diagnose=compile_failures(self.failures),
        )

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare the row's traits, for this model and these settings."""
        embeds = settings.mode is Mode.EMBED
        # drafts are evaluated too, so that what was evaluated is not what was generated
        drafts = any("draft" in word for word in settings.extra_args)
        return replace(
            self.base_traits,
            context_length=settings.context_length,
            max_concurrency=self.slots(settings.parallel),
            shifts_context=self.base_traits.shifts_context
            and not embeds
            and not has_flag(settings.extra_args, "--no-context-shift"),
            takes_logprobs=settings.logprobs or not self.logprobs_at_start,
            takes_images=self.reads_projectors and bundle.projector is not None,
            logged_usage=None if drafts else self.base_traits.logged_usage,
            rerank_path=self.rerank_path if embeds else None,
            splits_reasoning=self.base_traits.splits_reasoning
            and not self.leaves_thinking(settings.chat_template),
            finish_body=partial(add_fields, defaults=self.end_turn_at(*settings.turn_end))
            if settings.turn_end and not embeds
            else None,
        )


def _times(count: int) -> str:
    return "one request" if count == 1 else f"{count} requests"


# architecture in Ollama's files → what the same model is called in stock files
RENAMED = {
    "gptoss": "gpt-oss",
    "qwen25vl": "qwen2vl",
    "mllama": "mllama, which llama.cpp does not know at all",
    "olmo3": "olmo2",
    "deepseekocr": "deepseek2-ocr",
    "glmocr": "glm4",
    "glm4moelite": "deepseek2",
    "nemotron_h_omni": "nemotron_h",
}
ENCODERS = ("v.", "mm.", "a.", "s.")
"""What the names of an encoder's tensors begin with; in stock files they are in the mmproj."""
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
            "the file was made for Ollama's own engine: the encoder of images or sound is inside "
            f"it ('{inside}'), not in an mmproj file beside it"
        )
    return None
