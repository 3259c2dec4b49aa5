"""SGLang through `python -m sglang.launch_server`, and its port to JAX, which has the same options.

We have never started SGLang, because its kernels need a GPU. The arguments and fields come from the
help and the source of version 0.5.23; tests check the argument list as a table and the traits
against the fake engine. SGLang answers `/health` before its own warm-up is over, so the probe waits
for a first answer. It takes its key on the command line only, where every user of the machine could
read it, so it is started on loopback without one.

SGLang-JAX on PyPI (0.0.1.post1) starts on a CPU but crashes at the first token because of a bug of
its own, so nothing beyond that could be tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vllama.chat.engine.traits import Tokenizer, Traits
from vllama.chat.grammar_schema import XGRAMMAR
from vllama.engines.base import Engine, FailurePattern, Mode, Overhead, Settings
from vllama.engines.failures import make_patterns
from vllama.engines.package_server import (
    GIB,
    OFFLINE,
    PARAMETERS,
    PackageServer,
    explain_mistral_only,
    explain_mlx_only,
)
from vllama.engines.recipe import CUDA_13, MachineKind, Recipe, Wheels
from vllama.engines.request_body import SGLANG, add_fields, clamp_field
from vllama.machine.environments.layout import Step
from vllama.machine.types import Platform, Vendor
from vllama.models.types import Bundle, Capability, ModelInfo
from vllama.supervise.spec import Endpoint, Fault, Grace, HttpProbe

FAILURES = make_patterns(
    (r"Not enough memory|Please try to increase --mem-fraction-static",
     "the model and its context do not fit into the GPU's memory",
     "use a smaller --context-length or a smaller model, or free the GPU", Fault.MEMORY),
    (r"Model architectures? (.+?) (?:are|is) not supported",
     "SGLang does not support the architecture {0}", "update it, or use another engine",
     Fault.ARCHITECTURE),
    (r"from sgl_kernel import|No module named 'sgl_kernel'",
     "its kernels are not built for this machine",
     "SGLang's package is for NVIDIA GPUs; use another engine", Fault.MISMATCH),
)  # fmt: skip
JAX_FAILURES = make_patterns(
    (r"LogitsProcessor\.__call__\(\) missing",
     "this release of SGLang-JAX cannot run the model, because of a bug",
     "update it, or use another engine", Fault.ARCHITECTURE),
)  # fmt: skip
RECIPE = Recipe(
    needs=replace(CUDA_13, since=(0, 5, 20)),
    wheels=(
        Wheels(
            steps=(Step(requirements=("sglang>=0.5.23",)),),
            download_bytes=4 * GIB,
            disk_bytes=10 * GIB,
            on=(MachineKind.NVIDIA,),
            systems=("linux",),
            check=("python", "-I", "-c", "import sglang"),
        ),
    ),
    by_hand="pip install sglang (Linux with an NVIDIA GPU)",
)
AT_ONCE = 256


def finish_body(body: dict[str, Any], turn_end: tuple[str, int] | None) -> dict[str, Any]:
    """Spell values as it wants them, and end the answer at the token that the template sets."""
    clamp_field(body, "repetition_penalty", 1e-3, 2.0)
    if body.get("top_k") == 0:
        body["top_k"] = -1  # all tokens
    return add_fields(body, {"stop_token_ids": [turn_end[1]]}) if turn_end else body


@dataclass(frozen=True, kw_only=True)
class Sglang(PackageServer):
    """Adapter of SGLang's server."""

    name: str = "sglang"
    title: str = "SGLang"
    modes: tuple[Mode, ...] = (Mode.CHAT, Mode.EMBED)
    overhead: Overhead = Overhead(
        fixed_bytes=2 * GIB, logits_rows=1024, context_multiple=16, logprobs_take_memory=False
    )
    failures: tuple[FailurePattern, ...] = FAILURES
    install: Recipe = RECIPE
    distributions: tuple[str, ...] = ("sglang",)
    needs: tuple[str, ...] = ("sglang", "torch")
    ready: HttpProbe = HttpProbe(path="/health", verify_path="/v1/models")
    first_work_path: str | None = "/v1/chat/completions"
    grace: Grace = Grace(term_s=5.0, second_term_s=3.0, kill_s=10.0)
    module: str = "sglang.launch_server"
    always_offloads: bool = True

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Come after vLLM on Linux with an NVIDIA GPU; elsewhere users have to name it."""
        gpus = platform.of(Vendor.NVIDIA)
        if any(gpu.shares_ram for gpu in gpus):  # by its default of --mem-fraction-static
            return 0, "it reserves most of the GPU memory, which is RAM on this machine"
        if platform.os == "linux" and gpus:
            return 40, f"Linux with {gpus[0].name}"
        return 0, "it needs Linux with an NVIDIA GPU"

    def refuses(self, platform: Platform, info: ModelInfo) -> str | None:
        """Refuse weights in formats of others; SGLang itself knows its architectures."""
        return explain_mlx_only(info) or explain_mistral_only(info)

    def build_arguments(
        self, bundle: Bundle, settings: Settings, endpoint: Endpoint
    ) -> Sequence[object]:
        """Serve the model under its alias, with the planned context."""
        own: list[object] = [
            "-m", self.module, "--model-path", bundle.path,
            "--served-model-name", settings.alias, "--host", endpoint.host,
            "--port", endpoint.port, "--context-length", settings.context_length,
            "--enable-cache-report",
        ]  # fmt: skip
        if settings.parallel:
            own += ["--max-running-requests", settings.parallel]
        if settings.mode is Mode.EMBED:
            own += ["--is-embedding"]
        return own

    def build_environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Keep it off the network."""
        return OFFLINE

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what it does without the parsers that would have to be named at its start."""
        return Traits(
            context_length=settings.context_length,
            max_concurrency=settings.parallel or AT_ONCE,
            model_name=settings.alias,
            parameters=PARAMETERS,
            finish_body=partial(finish_body, turn_end=settings.turn_end),
            parses_tools=False,
            splits_reasoning=False,
            takes_images=Capability.VISION in settings.capabilities,
            takes_audio=Capability.AUDIO in settings.capabilities,
            takes_n=True,
            passed_fields=SGLANG,
            takes_structural_tags=True,
            schema_compiler=XGRAMMAR,
            reads_sampling=True,
            fields_for_marks={"skip_special_tokens": False},
            takes_template_kwargs=True,
            reasoning_field="reasoning_content",
            takes_continue_final_message=True,
            takes_reasoning_effort=True,
            rerank_path="/v1/rerank",
            transcription_path="/v1/audio/transcriptions",
            tokenizer=Tokenizer(
                tokenize_path="/v1/tokenize",
                detokenize_path="/v1/detokenize",
                input_field="prompt",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class SglangJax(Sglang):
    """Adapter of SGLang-JAX's server."""

    name: str = "sglang-jax"
    aliases: tuple[str, ...] = ("sgl-jax",)
    title: str = "SGLang-JAX"
    modes: tuple[Mode, ...] = (Mode.CHAT,)
    overhead: Overhead = Overhead(
        fixed_bytes=GIB, logits_rows=1024, context_multiple=16, logprobs_take_memory=False
    )
    failures: tuple[FailurePattern, ...] = JAX_FAILURES
    install: Recipe = Recipe(by_hand="pip install sglang-jax (on a machine with TPUs)")
    distributions: tuple[str, ...] = ("sglang-jax",)
    needs: tuple[str, ...] = ("sgl_jax",)
    module: str = "sgl_jax.launch_server"

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Return 0: vllama does not detect TPUs."""
        return 0, "it is built for TPUs"

    def build_arguments(
        self, bundle: Bundle, settings: Settings, endpoint: Endpoint
    ) -> Sequence[object]:
        """Limit the cache on a CPU, where it would take nearly all memory."""
        own = [*super().build_arguments(bundle, settings, endpoint)]
        if not settings.gpu_layers:
            own += [
                "--device", "cpu", "--attention-backend", "native", "--disable-jax-precompile",
                "--max-total-tokens", settings.context_length * (settings.parallel or 1),
            ]  # fmt: skip
        return own

    def build_environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Keep it off the network, and on the CPU where no layers go to a device."""
        own = dict(super().build_environment(settings, endpoint))
        return own if settings.gpu_layers else own | {"JAX_PLATFORMS": "cpu"}


ENGINE: Engine = Sglang()
JAX_ENGINE: Engine = SglangJax()
