"""MLX through `mlx_lm.server`: Apple's own library, and the reader of models made for it.

Facts of mlx-lm 0.32: it listens before the weights are loaded and stays up if they cannot be (503,
a line in its log), as it does when its port is taken; a request with any other model's name makes
it look for that on the hub; requests with a seed are done one at a time; log probabilities are in
whole answers only, which are never asked for here. There is no key; pages of a browser are kept
out by an empty list of origins.

See docs/reference/engines.md#mlx-lm.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from vllama.chat.engine.traits import SchemaStyle, Traits
from vllama.engines.base import FailurePattern, Overhead, Settings
from vllama.engines.failures import COMMON_FAILURES, GENERAL
from vllama.engines.locate import PackageLocation
from vllama.engines.package_server import PARAMETERS, PackageServer
from vllama.engines.recipe import MachineKind, Recipe, Wheels
from vllama.engines.request_body import add_fields
from vllama.environments.layout import Step
from vllama.hardware.types import Platform
from vllama.models.types import Bundle, Capability
from vllama.supervise.spec import Endpoint, Fault

MIB = 1024**2
PENALTY_WINDOW = 64
"""Tokens that penalties look at: Ollama's number; its own default is 20."""

FAILURES = (
    *COMMON_FAILURES,
    FailurePattern(
        pattern=r"Model type (\S+) not supported",
        cause="MLX does not know the architecture {0}",
        hint="update it (vllama engines install mlx-lm --upgrade), or choose another engine",
        fault=Fault.ARCHITECTURE,
    ),
    *GENERAL,
    FailurePattern(
        pattern=r"generation thread died: (.+)",
        cause="it could not load the model ({0})",
        hint="fetch the model again, or choose another engine",
    ),
)
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
            note="on Linux it is for trying: an engine for this machine is several times as fast",
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
        """Metal, where there is any."""
        return sys.platform == "darwin"

    def preference(self, platform: Platform) -> tuple[int, str]:
        """First choice for safetensors on Apple silicon; elsewhere only by name."""
        if platform.os == "darwin" and platform.arch == "arm64":
            return 60, "Apple silicon: made for it, and the reader of MLX's models"
        return 0, "it is made for Apple silicon"

    def build_arguments(
        self, bundle: Bundle, settings: Settings, endpoint: Endpoint
    ) -> Sequence[object]:
        """Give it all defaults that matter; 512 tokens would be its own limit of an answer."""
        at_once = settings.parallel or 1
        return (
            "--model", bundle.path, "--host", endpoint.host, "--port", endpoint.port,
            "--max-tokens", settings.context_length, "--decode-concurrency", at_once,
            "--prompt-concurrency", at_once, "--prompt-cache-size", at_once,
            "--allowed-origins=",
        )  # fmt: skip

    def build_environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Keep it off the network."""
        return {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what its handler reads.

        It parses calls and thinking where it knows the tokenizer's marks and leaves those of other
        models in the text: so the front looks there too.
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
            takes_developer_role=False,
            takes_nulls=False,
            takes_logprobs=False,
            takes_images=Capability.VISION in settings.capabilities,
            takes_template_kwargs=True,
            roles=frozenset({"system", "user", "assistant", "tool"}),
        )


ENGINE = MlxLm()
