"""vLLM through `vllm serve`.

Not started by the tests of this repository yet: the argument list follows vLLM 0.32's
documentation and is checked as a table. `docs/engines.md` says what was tried where.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllama.engines.base import (
    FailurePattern,
    Installation,
    Missing,
    Mode,
    Overhead,
    Settings,
)
from vllama.engines.diagnose import diagnose
from vllama.engines.environment import child_environment
from vllama.hardware.types import Platform, Vendor
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.supervise.spec import Endpoint, Grace, HttpProbe, LaunchSpec
from vllama.translate.traits import Tokenizer, Traits

INSTALL = (
    "install it with: pip install vllm (Linux with an NVIDIA GPU), or choose --engine llama.cpp"
)
GIB = 1024**3

PARAMETERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
    "max_tokens": "max_tokens",
}

FAILURES = (
    FailurePattern(
        pattern=r"(?i)CUDA out of memory|No available memory for the cache blocks"
        r"|less than desired GPU memory utilization",
        cause="the model and its context do not fit into the GPU's memory",
        hint="use a smaller context (--ctx) or a smaller model, or free the GPU",
    ),
    FailurePattern(
        pattern=r"Model architectures? (.+?) (?:are|is) not supported",
        cause="vLLM does not support the architecture {0}",
        hint="update vLLM, or choose --engine llama.cpp with a GGUF of the model",
    ),
    FailurePattern(
        pattern=r"(?i)address already in use",
        cause="its port was taken by another program",
        retryable=True,
    ),
    FailurePattern(
        pattern=r"(?i)driver version is insufficient|NVIDIA driver on your system is too old",
        cause="the NVIDIA driver is too old for this build of vLLM",
        hint="update the driver, or install a vLLM built for an older CUDA",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """Adapter of `vllm serve`."""

    name: str = "vllm"
    aliases: tuple[str, ...] = ()
    title: str = "vLLM"
    formats: tuple[Format, ...] = (Format.SAFETENSORS,)
    modes: tuple[Mode, ...] = (Mode.CHAT, Mode.EMBED)
    overhead: Overhead = Overhead(fixed_bytes=2 * GIB, logits_rows=1024, context_multiple=16)
    failures: tuple[FailurePattern, ...] = FAILURES

    def find(self) -> Installation | Missing:
        """Look for it in this environment, then on PATH, without importing it."""
        try:
            version = importlib.metadata.version("vllm")
        except importlib.metadata.PackageNotFoundError:
            version = ""
        beside = Path(sys.executable).with_name("vllm")
        if version and beside.exists():
            return Installation(engine=self.name, version=version, executable=beside, offloads=True)
        if path := shutil.which("vllm"):
            return Installation(
                engine=self.name, version="unknown", executable=Path(path), offloads=True
            )
        return Missing(engine=self.name, reason="it is not installed", hint=INSTALL)

    def preference(self, platform: Platform) -> tuple[int, str]:
        """First choice on Linux with an NVIDIA GPU, none elsewhere."""
        gpus = platform.of(Vendor.NVIDIA)
        if platform.os == "linux" and gpus:
            return 100, f"Linux with {gpus[0].name}"
        return 0, "it needs Linux with an NVIDIA GPU"

    def supports(self, platform: Platform, info: ModelInfo) -> str | None:
        """Leave the question to vLLM, which knows its own list of architectures."""
        return None

    def launch(
        self,
        bundle: Bundle,
        settings: Settings,
        installation: Installation,
        endpoint: Endpoint,
        environ: Mapping[str, str],
    ) -> LaunchSpec:
        """Build `vllm serve FOLDER`."""
        argv = [
            str(installation.executable),
            "serve",
            str(bundle.path),
            "--served-model-name",
            settings.alias,
            "--host",
            endpoint.host,
            "--port",
            str(endpoint.port),
            "--max-model-len",
            str(settings.context_length),
        ]
        if settings.parallel:
            argv += ["--max-num-seqs", str(settings.parallel)]
        if settings.mode is Mode.EMBED:
            argv += ["--runner", "pooling"]
        # the key goes by the environment, where `ps` does not show it
        extra = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        if endpoint.api_key:
            extra["VLLM_API_KEY"] = endpoint.api_key
        return LaunchSpec(
            name=settings.alias,
            argv=(*argv, *settings.extra_args),
            env=child_environment(environ, extra=extra),
            cwd=Path("/"),
            endpoint=endpoint,
            probe=HttpProbe(path="/health", verify_path="/v1/models"),
            grace=Grace(term_s=5.0, second_term_s=3.0, kill_s=10.0),
            stall_timeout_s=settings.stall_timeout_s,
            diagnose=diagnose(self.failures),
        )

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare vLLM's own OpenAI server."""
        return Traits(
            context_length=settings.context_length,
            max_concurrency=settings.parallel or 256,
            model_name=settings.alias,
            parameters=PARAMETERS,
            parses_tools=False,
            splits_reasoning=False,
            takes_images=bundle.projector is not None,
            embeds=settings.mode is Mode.EMBED,
            takes_n=True,
            takes_template_kwargs=True,
            # tools reach the template also with "none", and any other choice wants a parser
            silent_tool_choice="none",
            names_stop=True,
            # pooling servers score; others answer 404, which is told to the client
            rerank_path="/v1/rerank",
            transcription_path="/v1/audio/transcriptions",
            translation_path="/v1/audio/translations",
            tokenizer=Tokenizer(
                tokenize_path="/tokenize",
                detokenize_path="/detokenize",
                input_field="prompt",
                text_field="prompt",
            ),
        )


ENGINE = Vllm()
