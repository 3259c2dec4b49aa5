"""SGLang on JAX (TPUs) through `python -m sgl_jax.launch_server`: SGLang's command and API.

The release on PyPI (0.0.1.post1) starts on a CPU and ends itself at the first token, by a fault of
its own (engines-other §9), so that nothing of it could be tried further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllama.engines.base import FailurePattern, Mode, Overhead, Settings
from vllama.engines.recipe import Recipe
from vllama.engines.served import COMMON_FAILURES, GIB
from vllama.engines.sglang import Sglang
from vllama.hardware.types import Platform
from vllama.models.types import Bundle
from vllama.supervise.spec import Endpoint, Fault

FAILURES = (
    FailurePattern(
        pattern=r"LogitsProcessor\.__call__\(\) missing",
        cause="this release of SGLang-JAX cannot run the model (a fault of its own)",
        hint="update it, or choose another engine",
        fault=Fault.ARCHITECTURE,
    ),
    *COMMON_FAILURES,
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
    failures: tuple[FailurePattern, ...] = FAILURES
    install: Recipe = Recipe(by_hand="pip install sglang-jax (on a machine with TPUs)")
    distributions: tuple[str, ...] = ("sglang-jax",)
    needs: tuple[str, ...] = ("sgl_jax",)
    module: str = "sgl_jax.launch_server"

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Only by name: TPUs are not looked for."""
        return 0, "it is made for TPUs"

    def command(self, bundle: Bundle, settings: Settings, endpoint: Endpoint) -> Sequence[object]:
        """Bound its cache on a CPU: it would take nearly all memory."""
        own = [*super().command(bundle, settings, endpoint)]
        if not settings.gpu_layers:
            own += [
                "--device", "cpu", "--attention-backend", "native", "--disable-jax-precompile",
                "--max-total-tokens", settings.context_length * (settings.parallel or 1),
            ]  # fmt: skip
        return own

    def environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Keep it off the network, and off devices that it was not given."""
        own = dict(super().environment(settings, endpoint))
        return own if settings.gpu_layers else own | {"JAX_PLATFORMS": "cpu"}


ENGINE = SglangJax()
