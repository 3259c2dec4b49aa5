"""llama.cpp through `python -m llama_cpp.server`, the server of llama-cpp-python.

Measured facts behind the choices here (llama-cpp-python 0.3.36):
one request at a time under a lock, and a second one cuts the first unless
`--interrupt_requests false`; `/v1/models` waits for that lock, so readiness is asked through
`/health`, which does not exist: its 404 means that the model is loaded, because the port is
bound only afterwards. Defaults that matter are passed explicitly: context 2048, 0 GPU layers,
logits of all tokens on. The context has to be a multiple of 256.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
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
from vllama.engines.ollama_layouts import only_for_ollama
from vllama.hardware.types import Platform, Vendor
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.supervise.spec import Endpoint, Grace, HttpProbe, LaunchSpec
from vllama.translate.traits import SchemaStyle, Tokenizer, Traits, VectorStyle

DISTRIBUTION = "llama-cpp-python"
INSTALL = "install it with: pip install 'llama-cpp-python[server]' (it needs a C++ compiler)"
SERVER_NEEDS = ("fastapi", "uvicorn", "sse_starlette", "starlette_context", "pydantic_settings")
MIB = 1024 * 1024

PARAMETERS = {
    name: name
    for name in (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "stop",
        "max_tokens",
    )
}

# numbers of ggml's types (enum ggml_type in ggml.h)
KV_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}

FAILURES = (
    FailurePattern(
        pattern=r"unknown model architecture: '([^']*)'",
        cause="this build of llama.cpp does not know the architecture '{0}'",
        hint="update it with: pip install -U 'llama-cpp-python[server]', or choose another model",
    ),
    FailurePattern(
        pattern=r"data is not within the file bounds|model is corrupted or incomplete",
        cause="the model's file is cut or damaged",
        hint="remove it and pull it again",
    ),
    FailurePattern(
        pattern=r"invalid magic characters|failed to read magic",
        cause="the file is not a GGUF model",
        hint="choose a .gguf file or a model's name",
    ),
    FailurePattern(
        pattern=r"this GGUF file is version (\d+) but",
        cause="the file has GGUF version {0}, newer than this llama.cpp",
        hint="update it with: pip install -U 'llama-cpp-python[server]'",
    ),
    FailurePattern(
        pattern=r"address already in use",
        cause="its port was taken by another program",
        retryable=True,
    ),
    FailurePattern(
        pattern=r"(?i)failed to allocate|out of memory|cudaMalloc failed|std::bad_alloc"
        r"|Failed to create llama_context|MemoryError",
        cause="the model and its context do not fit into memory",
        hint="use a smaller context (--ctx) or a smaller model",
    ),
    FailurePattern(
        pattern=r"failed to apply lora adapter: (.+)"
        r"|Failed to (?:initialize|set) LoRA adapter from lora path",
        cause="it cannot use the model's adapter",
        hint="create the model again, with an adapter that was trained on it",
    ),
    FailurePattern(
        pattern=r"No module named '?([\w.]+)'?",
        cause="its installation is incomplete: the module {0} is missing",
        hint=INSTALL,
    ),
    FailurePattern(
        pattern=r"error loading model: (.*(?:wrong number of tensors|missing tensor|key not found"
        r"|wrong shape).*)",
        cause="it cannot load the model: {0}",
        hint="a file that was made for Ollama's own engine does not load here: pull the same "
        "model from the hub (vllama pull hf.co/org/repo)",
    ),
    FailurePattern(pattern=r"error loading model: (.+)", cause="it cannot load the model: {0}"),
    FailurePattern(pattern=r"gguf_init_from_\w+: (.+)", cause="it cannot read the model: {0}"),
    FailurePattern(pattern=r"Failed to load model from file", cause="it cannot load the model"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppPython:
    """Adapter of `llama_cpp.server`."""

    name: str = "llama-cpp-python"
    aliases: tuple[str, ...] = ("llama.cpp", "llamacpp", "llama-cpp", "llama_cpp")
    title: str = "llama.cpp (llama_cpp.server)"
    formats: tuple[Format, ...] = (Format.GGUF,)
    modes: tuple[Mode, ...] = (Mode.CHAT, Mode.EMBED)
    overhead: Overhead = Overhead(fixed_bytes=150 * MIB, logits_rows=512, context_multiple=256)
    failures: tuple[FailurePattern, ...] = FAILURES
    max_adapters: int = 1

    def find(self) -> Installation | Missing:
        """Look for the package in this environment, without importing it."""
        try:
            version = importlib.metadata.version(DISTRIBUTION)
        except importlib.metadata.PackageNotFoundError:
            return Missing(engine=self.name, reason="it is not installed", hint=INSTALL)
        lacking = [name for name in SERVER_NEEDS if importlib.util.find_spec(name) is None]
        if lacking:
            reason = f"it is installed without its server ({', '.join(lacking)} missing)"
            return Missing(engine=self.name, reason=reason, hint=INSTALL)
        spec = importlib.util.find_spec("llama_cpp")
        folder = Path(spec.origin).parent if spec and spec.origin else Path()
        backends = ("*cuda*", "*hip*", "*vulkan*", "*metal*", "*sycl*")
        offloads = sys.platform == "darwin" or any(
            next((folder / "lib").glob(pattern), None) for pattern in backends
        )
        return Installation(
            engine=self.name, version=version, python=Path(sys.executable), offloads=offloads
        )

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Best on macOS; elsewhere it runs on any CPU."""
        if platform.of(Vendor.APPLE):
            return 90, "Apple silicon: all layers on the GPU by Metal"
        if platform.os == "darwin":
            return 80, "macOS"
        return 50, "runs on any CPU"

    def supports(self, platform: Platform, info: ModelInfo) -> str | None:
        """Refuse what has a vocabulary but no weights, and what only Ollama's loader reads."""
        if info.weights_bytes == 0:
            return "the file has no weights (a vocabulary only)"
        return only_for_ollama(info)

    def launch(
        self,
        bundle: Bundle,
        settings: Settings,
        installation: Installation,
        endpoint: Endpoint,
        environ: Mapping[str, str],
    ) -> LaunchSpec:
        """Build `python -m llama_cpp.server` with every default that matters passed."""
        embed = settings.mode is Mode.EMBED
        # an embedding input is evaluated in one batch, so the batch must hold the context
        batch = settings.context_length if embed else 512
        flags: dict[str, object] = {
            "model": bundle.path,
            "model_alias": settings.alias,
            "host": endpoint.host,
            "port": endpoint.port,
            "n_ctx": settings.context_length,
            "n_batch": batch,
            "n_ubatch": batch,
            "n_gpu_layers": settings.gpu_layers,
            "n_threads": settings.threads,
            "n_threads_batch": settings.batch_threads,
            "embedding": embed,
            "flash_attn": settings.flash_attention,
            "logits_all": settings.logprobs,
            "use_mmap": True,
            "use_mlock": False,
            "interrupt_requests": False,
            "verbose": True,
        }
        if settings.kv_cache_type in KV_TYPES:
            flags["type_k"] = flags["type_v"] = KV_TYPES[settings.kv_cache_type]
        if bundle.adapters:
            flags["lora_path"] = bundle.adapters[0]
        argv = [str(installation.python), "-P", "-m", "llama_cpp.server"]
        for name, value in flags.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            argv += [f"--{name}", text]
        extra = {"OMP_WAIT_POLICY": environ.get("OMP_WAIT_POLICY", "PASSIVE")}
        if endpoint.api_key:
            # not as an argument: those are for everybody on the machine to read
            extra["API_KEY"] = endpoint.api_key
        return LaunchSpec(
            name=settings.alias,
            argv=(*argv, *settings.extra_args),
            env=child_environment(environ, extra=extra),
            cwd=Path("/"),
            endpoint=endpoint,
            probe=HttpProbe(
                path="/health", ready_statuses=frozenset({404}), verify_path="/v1/models"
            ),
            # a busy server finishes its answer before it obeys TERM, so do not wait for long
            grace=Grace(term_s=1.0, second_term_s=1.0, kill_s=5.0),
            stall_timeout_s=settings.stall_timeout_s,
            diagnose=diagnose(self.failures),
        )

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare how little it does by itself."""
        return Traits(
            context_length=settings.context_length,
            max_concurrency=1,
            model_name=None,
            parameters=PARAMETERS,
            usage_in_stream=False,
            parses_tools=False,
            splits_reasoning=False,
            takes_content_parts=False,
            takes_null_content=False,
            takes_developer_role=False,
            takes_max_completion_tokens=False,
            takes_nulls=False,
            takes_images=False,
            takes_logprobs=settings.logprobs,
            roles=frozenset({"system", "user", "assistant", "tool"}),
            schema_style=SchemaStyle.JSON_OBJECT,
            vector_style=VectorStyle.PER_TOKEN,
            embeds=settings.mode is Mode.EMBED,
            tokenizer=Tokenizer(
                tokenize_path="/extras/tokenize",
                detokenize_path="/extras/detokenize",
                drops_control=True,
            ),
            seed_bits=32,
            completes_chats=True,
            formats_completions=False,
        )


ENGINE = LlamaCppPython()
