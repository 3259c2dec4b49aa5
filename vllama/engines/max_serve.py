"""MAX through `max serve`, Modular's engine.

MAX 26.7 refuses fields that it does not know (400) and temperatures above 2, and leaves the stop
sequence in the text. On a CPU it takes float32 weights only, one request at a time. The first start
of a model compiles it for minutes, later ones take seconds. Without the variable below it sends
telemetry to its vendor and opens a second port for metrics. See docs/reference/engines.md#max.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllama.chat.engine.traits import SchemaStyle, Stops, Traits
from vllama.engines.argv import has_flag
from vllama.engines.base import Engine, FailurePattern, Overhead, Settings
from vllama.engines.failures import make_patterns
from vllama.engines.package_server import (
    GIB,
    OFFLINE,
    PARAMETERS,
    PackageServer,
    explain_mistral_only,
    explain_mlx_only,
)
from vllama.engines.recipe import Recipe, Wheels
from vllama.engines.request_body import clamp_field, keep_fields
from vllama.machine.environments.layout import Step
from vllama.machine.types import Platform
from vllama.models.types import Bundle, Capability, ModelInfo
from vllama.supervise.spec import Endpoint, Fault, Grace, HttpProbe

FIELDS = frozenset(
    {
        "model", "messages", "prompt", "stream", "stream_options", "temperature", "top_p", "top_k",
        "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop",
        "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "stop_token_ids",
        "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
        "response_format", "chat_template_kwargs", "reasoning_effort", "user",
    }
)  # fmt: skip

FAILURES = make_patterns(
    (r"The encoding '?(\w+)'? is not compatible with the selected device type '?(\w+)",
     "MAX cannot use weights in {0} on a device of type {1}",
     "use a float32 variant, or another engine", Fault.QUANTIZATION),
    (r"(?i)architecture[^.]{0,80}not (?:supported|registered|found)"
     r"|no registered architecture|unsupported architecture",
     "MAX does not support the model's architecture", "use another engine", Fault.ARCHITECTURE),
    (r"(?i)not enough memory|exceeds available memory|insufficient memory"
     r"|requires more memory",
     "the model and its context do not fit into memory",
     "use a smaller --context-length or a smaller model, or free memory", Fault.MEMORY),
)  # fmt: skip
RECIPE = Recipe(
    wheels=(
        Wheels(
            steps=(Step(requirements=("max[serve]>=26.7",)),),
            download_bytes=GIB // 2,
            disk_bytes=13 * GIB // 10,
            check=("max", "--version"),
            note="the first start of each model compiles it, which takes minutes",
        ),
    ),
    by_hand="pip install 'max[serve]'",
)


def finish_body(body: dict[str, Any]) -> dict[str, Any]:
    """Drop the fields that it would refuse, and move the temperature into its range."""
    clamp_field(body, "temperature", 0.0, 2.0)
    return keep_fields(body, FIELDS)


@dataclass(frozen=True, kw_only=True)
class MaxServe(PackageServer):
    """Adapter of `max serve`."""

    name: str = "max"
    aliases: tuple[str, ...] = ("max-serve", "modular")
    title: str = "MAX"
    overhead: Overhead = Overhead(fixed_bytes=GIB, logits_rows=1, logprobs_take_memory=False)
    failures: tuple[FailurePattern, ...] = FAILURES
    install: Recipe = RECIPE
    distributions: tuple[str, ...] = ("max",)
    program: str | None = "max"
    needs: tuple[str, ...] = ("fastapi", "uvicorn")
    ready: HttpProbe = HttpProbe(path="/health", verify_path="/v1/models")
    grace: Grace = Grace(term_s=8.0, second_term_s=3.0, kill_s=10.0)
    always_offloads: bool = True  # one wheel has the code for all its GPUs

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Return 0: whether it can serve a model shows only after minutes."""
        return 0, "used only with --engine max: the first start of a model takes minutes"

    def refuses(self, platform: Platform, info: ModelInfo) -> str | None:
        """Refuse weights that it cannot compute with on a CPU."""
        if reason := explain_mlx_only(info) or explain_mistral_only(info):
            return reason
        if not platform.accelerators and info.quant != "F32":
            return f"on a CPU it supports only float32 weights, not {info.quant}"
        return None

    def build_arguments(
        self, bundle: Bundle, settings: Settings, endpoint: Endpoint
    ) -> Sequence[object]:
        """Name device and encoding: it would guess an encoding that the files do not have."""
        own: list[object] = [
            "serve", "--model", bundle.path, "--served-model-name", settings.alias,
            "--host", endpoint.host, "--port", endpoint.port,
            "--max-length", settings.context_length,
        ]  # fmt: skip
        if not settings.gpu_layers and not has_flag(settings.extra_args, "--devices"):
            own += ["--devices", "cpu", "--quantization-encoding", "float32"]
        if settings.parallel:
            own += ["--max-batch-size", settings.parallel]
        return own

    def build_environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Keep it off the network, and to one port."""
        return OFFLINE | {"MAX_SERVE_DISABLE_TELEMETRY": "1"}

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what it does without the parsers that would have to be named at its start."""
        on_cpu = not settings.gpu_layers
        return Traits(
            context_length=settings.context_length,
            max_concurrency=settings.parallel or (1 if on_cpu else 64),
            model_name=settings.alias,
            parameters=PARAMETERS,
            finish_body=finish_body,
            schema_style=SchemaStyle.NONE,
            stops=Stops.KEPT,
            formats_completions=False,
            parses_tools=False,
            splits_reasoning=False,
            # on GPUs its scheduler works ahead and refuses them
            takes_logprobs=on_cpu,
            takes_images=Capability.VISION in settings.capabilities,
            takes_template_kwargs=True,
            seed_bits=63,
        )


ENGINE: Engine = MaxServe()
