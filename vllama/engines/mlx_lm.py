"""MLX through `mlx_lm.server`: Apple's own library, which reads models made for it.

mlx-lm 0.32 listens before it has loaded the weights, and goes on running if it cannot load them
(503, and a line in its log) or if its port is taken. A request for any other model's name makes it
look on the hub. It answers requests with a seed one at a time, and returns log probabilities only
in whole answers, which vllama never asks for. It has no key; an empty list of origins keeps the
pages of browsers out. See docs/reference/engines.md#mlx-lm.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from vllama.chat.engine.traits import SchemaStyle, Traits
from vllama.engines.base import Engine, FailurePattern, Overhead, Settings
from vllama.engines.failures import GENERAL, make_patterns
from vllama.engines.locate import PackageLocation
from vllama.engines.package_server import OFFLINE, PARAMETERS, PackageServer, explain_mistral_only
from vllama.engines.recipe import MachineKind, Recipe, Wheels
from vllama.engines.request_body import add_fields
from vllama.machine.environments.layout import Step
from vllama.machine.types import Platform
from vllama.models.types import Bundle, Capability, ModelInfo
from vllama.supervise.spec import Endpoint, Fault

MIB = 1024**2
PENALTY_WINDOW = 64
"""Tokens that penalties look back at: Ollama's number; the server's default is 20."""

FAILURES = make_patterns(
    (r"Model type (\S+) not supported", "MLX does not support the architecture {0}",
     "update it (vllama engines install mlx-lm --upgrade), or use another engine",
     Fault.ARCHITECTURE),
    *GENERAL,
    (r"generation thread died: (.+)", "it could not load the model ({0})",
     "download the model again, or use another engine", None),
)  # fmt: skip
PACKAGES = ("mlx-lm>=0.32",)
CHECK = ("python", "-I", "-c", "import mlx_lm.server")
RECIPE = Recipe(
    wheels=(
        Wheels(
            steps=(Step(requirements=PACKAGES),),
            download_bytes=120 * MIB,
            disk_bytes=400 * MIB,
            on=(MachineKind.APPLE,),
            systems=("darwin",),
            archs=("arm64",),
            check=CHECK,
        ),
        Wheels(
            steps=(Step(requirements=("mlx[cpu]>=0.32", *PACKAGES)),),
            download_bytes=120 * MIB,
            disk_bytes=350 * MIB,
            systems=("linux",),
            check=CHECK,
            note="on Linux it is only for experiments: another engine is several times as fast",
        ),
    ),
    by_hand="pip install mlx-lm (on Linux: 'mlx[cpu]' mlx-lm)",
)


@dataclass(frozen=True, kw_only=True)
class MlxLm(PackageServer):
    """Adapter of `mlx_lm.server`."""

    name: str = "mlx-lm"
    aliases: tuple[str, ...] = ("mlx", "mlx_lm")
    title: str = "MLX"
    overhead: Overhead = Overhead(fixed_bytes=250 * MIB, logits_rows=1, logprobs_take_memory=False)
    failures: tuple[FailurePattern, ...] = FAILURES
    install: Recipe = RECIPE
    distributions: tuple[str, ...] = ("mlx-lm",)
    program: str | None = "mlx_lm.server"
    first_work_path: str | None = "/v1/chat/completions"
    hopeless: str | None = r"generation thread died|[Aa]ddress already in use"

    def offloads(self, location: PackageLocation) -> bool:
        """Tell whether there is Metal."""
        return sys.platform == "darwin"

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Come first for safetensors on Apple silicon; elsewhere users have to name it."""
        if platform.os == "darwin" and platform.arch == "arm64":
            return 60, "Apple silicon: built for it, and the only engine for MLX models"
        return 0, "it is built for Apple silicon"

    def refuses(self, platform: Platform, info: ModelInfo) -> str | None:
        """Refuse weights in Mistral's own format."""
        return explain_mistral_only(info)

    def build_arguments(
        self, bundle: Bundle, settings: Settings, endpoint: Endpoint
    ) -> Sequence[object]:
        """Pass all defaults that matter; its own limit of an answer is 512 tokens."""
        at_once = settings.parallel or 1
        return (
            "--model", bundle.path, "--host", endpoint.host, "--port", endpoint.port,
            "--max-tokens", settings.context_length, "--decode-concurrency", at_once,
            "--prompt-concurrency", at_once, "--prompt-cache-size", at_once,
            "--allowed-origins=",
        )  # fmt: skip

    def build_environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Keep it off the network."""
        return OFFLINE

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what its handler reads.

        It parses calls and thinking where it knows the tokenizer's marks and leaves those of other
        models in the text, so vllama looks there too.
        """
        penalties = ("repetition", "presence", "frequency")
        defaults = {
            "max_tokens": settings.context_length,
            **{f"{name}_context_size": PENALTY_WINDOW for name in penalties},
        }
        return Traits(
            context_length=settings.context_length,
            max_concurrency=settings.parallel or 1,
            model_name="default_model",
            parameters=PARAMETERS,
            finish_body=partial(add_fields, defaults=defaults),
            schema_style=SchemaStyle.NONE,
            formats_completions=False,
            parses_tools=False,
            splits_reasoning=False,
            takes_nulls=False,
            takes_logprobs=False,
            takes_images=Capability.VISION in settings.capabilities,
            takes_template_kwargs=True,
            reasoning_field="reasoning_content",
            roles=frozenset({"system", "user", "assistant", "tool"}),
        )


ENGINE: Engine = MlxLm()
