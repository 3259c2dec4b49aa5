"""Recommendation of well-known models for this machine, by their plans.

The same for `vllama recommend` and Ollama's `/api/experimental/model-recommendations`. Nothing is
asked of the network: the shapes in the table are those of the models' `config.json`, the sizes are
rounded as Ollama's library shows them, both as known in `AS_OF`. They were not checked against the
files: `vllama plan NAME` reads those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct

from vllama.base.errors import ConfigError, NotEnoughMemory
from vllama.base.meaning import says
from vllama.engines.base import Mode
from vllama.engines.registry import suppose_installed
from vllama.models.types import Bundle, Capability, Format, ModelInfo
from vllama.plan.choose import draft_plan, reads
from vllama.plan.refuse import refuse_if_too_large
from vllama.plan.types import Estimate, Facts, Need

AS_OF = "2025-11"
GB = 10**9
SLOW_BYTES = 4 * GB
"""Weights read for each token: with more, a desktop's RAM (50 GB/s) gives under 13 tokens/s."""

Fit = Literal["fits", "slow", "too large"]
FITS: tuple[Fit, ...] = ("fits", "slow", "too large")


class Recommendation(Struct, frozen=True, kw_only=True):
    """A model of the table as it would run here. `where` says in which memory it would lie.

    `memory_bytes` is without the optional cache of conversations, `gpu_bytes` the GPUs' part of it.
    """

    model: str
    uses: Annotated[tuple[str, ...], says("what it is good for")]
    quantization: Annotated[str, says("the quantization of the files")]
    download_bytes: int
    memory_bytes: Annotated[int, says("the memory that it needs")]
    gpu_bytes: Annotated[int, says("the part of it that lies on GPUs")]
    context_length: int
    max_context_length: Annotated[int, says("the longest context in tokens")]
    fit: Annotated[Fit, says("whether it runs here, and well")]
    where: Annotated[str, says("the memory that it would lie in")]


def check_use(use: str | None) -> None:
    """Raise ConfigError for a use that no model of the table has."""
    if use is not None and use not in USES:
        raise ConfigError(f"cannot recommend for '{use}'", hint=f"use one of: {', '.join(USES)}")


def list_recommendations(facts: Facts) -> list[Recommendation]:
    """Return all models of the table, the largest of those that fit first.

    Without an engine for GGUFs, as they would run with the one that can be installed. Raises NoPlan
    where none can.
    """
    if not reads(facts, Format.GGUF):
        facts = replace(facts, found=suppose_installed(facts.found, facts.platform))
    return sorted((judge(facts, known) for known in MODELS), key=lambda row: FITS.index(row.fit))


def judge(facts: Facts, known: Known) -> Recommendation:
    """Return how a model would run here. Raises NoPlan."""
    bundle = Bundle(
        name=known.name, store="", format=Format.GGUF, path=Path(known.name), files=(),
        size_bytes=known.size_bytes, digest="", modified_s=0.0, quant=known.quant,
    )  # fmt: skip
    info = known.make_info()
    need = Need(mode=Mode.EMBED if EMBEDDINGS in known.uses else Mode.CHAT)
    plan, choice, estimate = draft_plan(facts, bundle, info, need)
    try:
        refuse_if_too_large(bundle, estimate, facts, choice, info, need)
        fit, where = judge_place(known, estimate)
    except NotEnoughMemory:
        where = f"needs {estimate.numbers} of {estimate.kind}, {estimate.usable} usable"
        fit = "too large"
    memory = plan.memory
    return Recommendation(
        model=known.name,
        uses=known.uses,
        quantization=known.quant,
        download_bytes=known.size_bytes,
        memory_bytes=memory.total_bytes,
        gpu_bytes=memory.total_bytes - memory.ram_bytes,
        context_length=estimate.context_length,
        max_context_length=known.context,
        fit=fit,
        where=where,
    )


def judge_place(known: Known, estimate: Estimate) -> tuple[Fit, str]:
    """Return how well a model that fits would run, and in which memory it would lie."""
    if estimate.memory.on_gpu and estimate.is_whole:
        return "fits", "GPU"
    used, count = (known.experts[1], known.experts[0]) if known.experts else (1, 1)
    read_bytes = int(known.size_bytes * estimate.ram_share * used / count)
    fit: Fit = "slow" if read_bytes > SLOW_BYTES else "fits"
    if not estimate.memory.on_gpu:
        return fit, "RAM"
    settings = estimate.settings
    if settings.gpu_layers >= 0:
        on_gpu = min(settings.gpu_layers, known.layers)
        return fit, f"{on_gpu} of {known.layers} layers on the GPU"
    return fit, f"GPU, the experts of {settings.cpu_moe} of {known.layers} layers in RAM"


@dataclass(frozen=True, slots=True)
class Known:
    """A model of the table. `inner` is the width of its feed-forward layer, of one expert's if it
    has `experts`, of which a token uses some. `window`: that of every other layer, or of five in
    six (gemma3), in tokens. Sizes in bytes, `context` in tokens.
    """

    name: str
    uses: tuple[str, ...]
    quant: str
    size_bytes: int
    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    vocabulary: int
    context: int
    experts: tuple[int, int] | None = None
    window: int | None = None

    def make_info(self) -> ModelInfo:
        """Return it as the header of its file would tell it."""
        metadata: dict[str, object] = {f"{self.architecture}.feed_forward_length": self.inner}
        if self.experts is not None:
            count, used = self.experts
            metadata = {
                f"{self.architecture}.expert_feed_forward_length": self.inner,
                f"{self.architecture}.expert_count": count,
                f"{self.architecture}.expert_used_count": used,
            }
        embeds = "embeddings" in self.uses
        if embeds:
            metadata[f"{self.architecture}.pooling_type"] = 1
        return ModelInfo(
            architecture=self.architecture,
            quant=self.quant,
            context_length=self.context,
            embedding_length=self.width,
            block_count=self.layers,
            head_count=self.heads,
            head_count_kv=(self.kv_heads,),
            key_length=self.head_width,
            value_length=self.head_width,
            sliding_window=self.window,
            vocab_size=self.vocabulary,
            weights_bytes=self.size_bytes,
            capabilities=frozenset({Capability.EMBEDDING if embeds else Capability.COMPLETION}),
            metadata=metadata,
            tensors=tuple(self._list_tensors()),
        )

    def _list_tensors(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Yield the large tensors; only their proportions count, so one type stands for all."""
        yield "token_embd.weight", "Q4_K", (self.width, self.vocabulary)
        query, cached = self.heads * self.head_width, self.kv_heads * self.head_width
        many, middle = ("_exps", (self.experts[0],)) if self.experts else ("", ())
        for number in range(self.layers):
            for part, size in (("q", query), ("k", cached), ("v", cached), ("output", query)):
                yield f"blk.{number}.attn_{part}.weight", "Q4_K", (self.width, size)
            for part in ("gate", "up", "down"):
                shape = (self.width, self.inner, *middle)
                yield f"blk.{number}.ffn_{part}{many}.weight", "Q4_K", shape


CHAT, CODE, TOOLS, VISION, THINKING = "chat", "code", "tools", "vision", "thinking"
EMBEDDINGS = "embeddings"
USES = (CHAT, CODE, TOOLS, VISION, THINKING, EMBEDDINGS)
Q4 = "Q4_K_M"
QWEN = (CHAT, TOOLS, THINKING)

MODELS = (
    Known("gpt-oss:120b", (*QWEN, CODE), "MXFP4", 65 * GB, "gpt-oss", 36, 2880, 64, 8, 64, 2880,
          201_088, 131_072, (128, 4), 128),
    Known("llama3.3:70b", (CHAT, TOOLS), Q4, 43 * GB, "llama", 80, 8192, 64, 8, 128, 28_672,
          128_256, 131_072),
    Known("qwen3-coder:30b", (CODE, TOOLS, CHAT), Q4, 19 * GB, "qwen3moe", 48, 2048, 32, 4, 128,
          768, 151_936, 262_144, (128, 8)),
    Known("qwen3:30b", QWEN, Q4, 19 * GB, "qwen3moe", 48, 2048, 32, 4, 128, 768, 151_936, 262_144,
          (128, 8)),
    Known("qwen3:32b", QWEN, Q4, 20 * GB, "qwen3", 64, 5120, 64, 8, 128, 25_600, 151_936, 40_960),
    Known("gemma3:27b", (CHAT, VISION), Q4, 17 * GB, "gemma3", 62, 5376, 32, 16, 128, 21_504,
          262_208, 131_072, None, 1024),
    Known("mistral-small3.2:24b", (CHAT, TOOLS, VISION), Q4, 15 * GB, "llama", 40, 5120, 32, 8,
          128, 32_768, 131_072, 131_072),
    Known("gpt-oss:20b", (*QWEN, CODE), "MXFP4", 14 * GB, "gpt-oss", 24, 2880, 64, 8, 64, 2880,
          201_088, 131_072, (32, 4), 128),
    Known("qwen3:14b", QWEN, Q4, 93 * GB // 10, "qwen3", 40, 5120, 40, 8, 128, 17_408, 151_936,
          40_960),
    Known("gemma3:12b", (CHAT, VISION), Q4, 81 * GB // 10, "gemma3", 48, 3840, 16, 8, 256, 15_360,
          262_208, 131_072, None, 1024),
    Known("qwen3:8b", QWEN, Q4, 52 * GB // 10, "qwen3", 36, 4096, 32, 8, 128, 12_288, 151_936,
          40_960),
    Known("qwen2.5-coder:7b", (CODE,), Q4, 47 * GB // 10, "qwen2", 28, 3584, 28, 4, 128, 18_944,
          152_064, 32_768),
    Known("qwen3:4b", QWEN, Q4, 25 * GB // 10, "qwen3", 36, 2560, 32, 8, 128, 9728, 151_936,
          262_144),
    Known("gemma3:4b", (CHAT, VISION), Q4, 33 * GB // 10, "gemma3", 34, 2560, 8, 4, 256, 10_240,
          262_208, 131_072, None, 1024),
    Known("llama3.2:3b", (CHAT, TOOLS), Q4, 2 * GB, "llama", 28, 3072, 24, 8, 128, 8192, 128_256,
          131_072),
    Known("qwen3:1.7b", QWEN, Q4, 14 * GB // 10, "qwen3", 28, 2048, 16, 8, 128, 6144, 151_936,
          40_960),
    Known("qwen3:0.6b", QWEN, Q4, 523 * GB // 1000, "qwen3", 28, 1024, 16, 8, 128, 3072, 151_936,
          40_960),
    Known("qwen3-embedding:0.6b", (EMBEDDINGS,), "Q8_0", 639 * GB // 1000, "qwen3", 28, 1024, 16,
          8, 128, 3072, 151_669, 32_768),
    Known("nomic-embed-text", (EMBEDDINGS,), "F16", 274 * GB // 1000, "nomic-bert", 12, 768, 12,
          12, 64, 3072, 30_522, 2048),
)  # fmt: skip
"""Larger ones first, within what they are good for."""
