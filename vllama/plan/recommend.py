"""Recommendation of well-known models for this machine, by their plans.

The same for `vllama recommend` and Ollama's `/api/experimental/model-recommendations`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from msgspec import Struct

from vllama.base.errors import ConfigError, NotEnoughMemory
from vllama.base.units import format_amounts
from vllama.engines.base import Mode
from vllama.engines.registry import suppose_installed
from vllama.models.types import Bundle, Format
from vllama.plan.choose import draft_plan, reads
from vllama.plan.recommended import EMBEDDINGS, GB, MODELS, USES, Known
from vllama.plan.refuse import refuse_if_too_large
from vllama.plan.types import Estimate, Facts, Need

SLOW_BYTES = 4 * GB
"""Weights read for each token: with more, a desktop's RAM (50 GB/s) gives under 13 tokens/s."""

Fit = Literal["fits", "slow", "too large"]
FITS: tuple[Fit, ...] = ("fits", "slow", "too large")


class Recommendation(Struct, frozen=True, kw_only=True):
    """A model of the table as it would run here. `where` says in which memory it would lie.

    `memory_bytes` is without the optional cache of conversations, `gpu_bytes` the GPUs' part of it.
    """

    model: str
    uses: tuple[str, ...]
    quantization: str
    download_bytes: int
    memory_bytes: int
    gpu_bytes: int
    context_length: int
    max_context_length: int
    fit: Fit
    where: str


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
        needed, usable = format_amounts(estimate.needed_bytes, estimate.usable_bytes)
        fit, where = "too large", f"needs {needed}, {usable} usable"
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
