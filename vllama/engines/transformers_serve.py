"""Transformers through `transformers serve`: every architecture, by the reference implementation.

transformers 5.23 refuses a request with a field that it does not know (422). It samples only if
`do_sample` is set, and reads that, `top_k`, `min_p` and the repetition penalty only from the JSON
in the field `generation_config`; a `frequency_penalty` would become the repetition penalty. It
stops after 20 or 1024 tokens by default, so a limit is always sent. `--continuous-batching` applies
the sampling of the first request to all that follow, so it is not used: one request at a time. See
docs/reference/engines.md#transformers-serve.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from vllama.chat.engine.traits import SchemaStyle, Stops, Traits
from vllama.engines.base import Engine, FailurePattern, Overhead, Settings
from vllama.engines.failures import make_patterns
from vllama.engines.locate import PackageLocation
from vllama.engines.package_server import (
    GIB,
    OFFLINE,
    PARAMETERS,
    PackageServer,
    explain_mistral_only,
    explain_mlx_only,
    has_gpu_torch,
)
from vllama.engines.recipe import CUDA_13, Recipe, Wheels
from vllama.engines.request_body import add_fields, keep_fields
from vllama.machine.environments.layout import Step
from vllama.machine.types import Platform
from vllama.models.types import Bundle, Capability, ModelInfo
from vllama.supervise.spec import Endpoint, Fault

LACKING = ("presence_penalty", "frequency_penalty")
IN_CONFIG = ("top_k", "min_p", "repetition_penalty")
"""Parameters that it reads only from the JSON in the field `generation_config`."""
FIELDS = frozenset(
    {
        "model", "messages", "prompt", "stream", "temperature", "top_p", "seed", "stop",
        "max_tokens", "max_completion_tokens", "logit_bias", "tools", "chat_template_kwargs",
        "generation_config",
    }
)  # fmt: skip
"""The fields that its chats and completions use; some others are accepted and ignored."""

FAILURES = make_patterns(
    (r"does not recognize this architecture|model type `?([\w.-]+)`? but Transformers",
     "this version of Transformers does not support the model's architecture",
     "update it (vllama engines install transformers --upgrade), or use another engine",
     Fault.ARCHITECTURE),
    (r"Unrecognized configuration class",
     "Transformers cannot generate text with a model of this architecture",
     "use a text generation model", Fault.ARCHITECTURE),
    (r"(?:requires|need).*?(?:accelerate|bitsandbytes|auto-?gptq|autoawq|gptqmodel"
     r"|compressed-tensors|optimum)",
     "the model's quantization needs a package that is not installed",
     "use a bfloat16 variant, or another engine", Fault.QUANTIZATION),
    (r"Error while deserializing header|SafetensorError: (.+)",
     "the model's weights are truncated or damaged ({0})", "download the model again", None),
    (r"Unrecognized processing class|Couldn't instantiate the backend tokenizer",
     "the model's folder has no tokenizer that Transformers can read", "download the model again",
     None),
    (r"Missing dependencies for serving", "it was installed without its server",
     "to install it: vllama engines install transformers", Fault.MISMATCH),
)  # fmt: skip
TORCH = ("torch>=2.10", "transformers[serving]>=5.23", "accelerate")
CHECK = ("python", "-I", "-c", "import torch, fastapi, transformers.cli.serve")
RECIPE = Recipe(
    needs=replace(CUDA_13, vendor=None, driver=0),  # uv takes the PyTorch that suits the driver
    wheels=(
        Wheels(
            steps=(Step(requirements=TORCH),),
            download_bytes=3 * GIB,
            disk_bytes=7 * GIB,
            systems=("linux",),
            # uv takes the PyTorch that suits this machine's driver, or one without CUDA
            env=(("UV_TORCH_BACKEND", "auto"),),
            check=CHECK,
            note="pip installs torch with CUDA libraries; uv installs them only for a GPU",
        ),
        Wheels(
            steps=(Step(requirements=TORCH),),
            download_bytes=GIB // 3,
            disk_bytes=3 * GIB // 2,
            systems=("darwin",),
            check=CHECK,
        ),
    ),
    by_hand="pip install torch 'transformers[serving]' accelerate",
)


def finish_body(body: dict[str, Any], limit: int) -> dict[str, Any]:
    """Put sampling where it is read, always send a limit, and drop what would be refused."""
    config = {name: body.pop(name) for name in IN_CONFIG if name in body} | {"do_sample": True}
    body["generation_config"] = msgspec.json.encode(config).decode()
    return keep_fields(add_fields(body, {"max_tokens": limit}), FIELDS)


@dataclass(frozen=True, kw_only=True)
class TransformersServe(PackageServer):
    """Adapter of `transformers serve`."""

    name: str = "transformers"
    aliases: tuple[str, ...] = ("transformers-serve", "hf")
    title: str = "Transformers"
    overhead: Overhead = Overhead(
        fixed_bytes=600 * 1024**2, logits_rows=1, logprobs_take_memory=False
    )
    failures: tuple[FailurePattern, ...] = FAILURES
    install: Recipe = RECIPE
    distributions: tuple[str, ...] = ("transformers",)
    program: str | None = "transformers"
    # the package is often installed for other work; with these it is a server
    needs: tuple[str, ...] = ("torch", "fastapi", "uvicorn", "openai")

    def offloads(self, location: PackageLocation) -> bool:
        """Tell whether its torch can use a GPU; on a Mac it always has Metal."""
        return sys.platform == "darwin" or has_gpu_torch(location)

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Come after the faster engines, for the models that they refuse."""
        return 10, "it supports every architecture, but is slower than dedicated servers"

    def refuses(self, platform: Platform, info: ModelInfo) -> str | None:
        """Refuse weights in formats of others."""
        return explain_mlx_only(info) or explain_mistral_only(info)

    def build_arguments(
        self, bundle: Bundle, settings: Settings, endpoint: Endpoint
    ) -> Sequence[object]:
        """Name the model, so that it is loaded before the port opens."""
        return (
            "serve", bundle.path, "--host", endpoint.host, "--port", endpoint.port,
            "--device", "auto" if settings.gpu_layers else "cpu", "--log-level", "info",
        )  # fmt: skip

    def build_environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Keep it off the network, and to the planned threads, which spin while they wait."""
        return OFFLINE | {"OMP_NUM_THREADS": str(settings.threads)}

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what its handlers read.

        It parses calls and thinking for some families only and leaves those of others in the text,
        so vllama looks there too.
        """
        return Traits(
            context_length=settings.context_length,
            model_name=str(bundle.path),
            parameters={k: v for k, v in PARAMETERS.items() if k not in LACKING},
            finish_body=partial(finish_body, limit=settings.context_length),
            schema_style=SchemaStyle.NONE,
            stops=Stops.KEPT,
            formats_completions=False,
            parses_tools=False,
            splits_reasoning=False,
            takes_nulls=False,
            takes_logprobs=False,
            takes_images=Capability.VISION in settings.capabilities,
            takes_audio=Capability.AUDIO in settings.capabilities,
            takes_template_kwargs=True,
            roles=frozenset({"system", "user", "assistant", "tool"}),
        )


ENGINE: Engine = TransformersServe()
