"""Arguments for vLLM that follow from a model's files: formats, white space, drafts, LoRA. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vllama.chat.grammar_schema import LLGUIDANCE, XGRAMMAR, Compiler
from vllama.engines.argv import has_flag
from vllama.engines.base import Settings
from vllama.models.types import Bundle, ModelInfo

SPECULATION = ("--speculative-config", "-sc")
TRANSFER = ("--kv-transfer-config", "--kv-offloading-size")
METHODS = {"simple": "draft_model", "mtp": "mtp"}
STRUCTURED = "--structured-outputs-config"
DRAFT_TOKENS, HEAD_TOKENS = 5, 1
ENABLE_LORA = "--enable-lora"
# the routes of adapters exist only with this variable (vllm/entrypoints/serve/lora)
LORA_SWITCH = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
LORA_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vllm/config/lora.py: MaxLoRARanks
MAX_LORAS = 32


def build_draft_config(bundle: Bundle, settings: Settings) -> str | None:
    """Return the value of `--speculative-config`, None without a draft model.

    The numbers of tokens are those of vLLM's documentation (features/speculative_decoding). It
    finds out by itself what kind of head a draft model is.
    """
    kind = settings.draft_kind
    if kind is None:
        return None
    count = bundle.parameters.get("draft_num_predict")
    default = HEAD_TOKENS if kind == "mtp" else DRAFT_TOKENS
    config: dict[str, object] = {
        "num_speculative_tokens": count if isinstance(count, int) else default
    }
    if bundle.draft is not None:
        config["model"] = str(bundle.draft)
    if method := METHODS.get(kind):
        config["method"] = method
    return json.dumps(config)


def build_transfer_config(folder: Path, ram_bytes: int) -> str:
    """Return the value of `--kv-transfer-config` that keeps blocks of the cache in `folder`.

    They go from the GPU to RAM, and from there to files (`v1/kv_offload/tiering`). What cannot be
    read again is computed again; the engine would end the request by itself.
    """
    extra = {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": ram_bytes,
        "secondary_tiers": [{"type": "fs", "root_dir": str(folder)}],
    }
    return json.dumps(
        {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra,
        }
    )


def choose_formats(info: ModelInfo, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options for files in Mistral's own format, except those that are `given`."""
    wanted = []
    if info.mistral_tokenizer:
        wanted.append("--tokenizer-mode")
    if info.mistral_weights:
        wanted += ["--config-format", "--load-format"]
    return tuple(word for flag in wanted if not has_flag(given, flag) for word in (flag, "mistral"))


def choose_whitespace(info: ModelInfo, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options that keep JSON compact, unless the user has set this config.

    By default vLLM's grammar allows any white space between two values, and small models go on with
    it to their limit. It refuses the option with its backend `auto`, and only xgrammar takes all of
    its structural tags; with Mistral's own tokenizer its calls need guidance, as with `auto`.
    """
    if any(word.startswith(STRUCTURED) for word in given):
        return ()
    backend = "guidance" if info.mistral_tokenizer else "xgrammar"
    return STRUCTURED, json.dumps({"backend": backend, "disable_any_whitespace": True})


def choose_compiler(info: ModelInfo | None, given: tuple[str, ...]) -> Compiler:
    """Return the backend for grammars that the config names.

    Another one than guidance gets what xgrammar holds, which is the least.
    """
    words = " ".join(given)
    mistral = info is not None and info.mistral_tokenizer and STRUCTURED not in words
    return LLGUIDANCE if mistral or '"guidance"' in words else XGRAMMAR


def build_lora_arguments(info: ModelInfo, given: Sequence[str], *, on_gpu: bool) -> list[str]:
    """Return the arguments for the LoRA adapters of a model that are on this disk.

    vLLM loads them beside each other at run time. It allocates `--max-loras` of rank
    `--max-lora-rank` for every linear layer at its start; of more adapters the least recently used
    give way (vllm/lora/worker_manager.py). One batch holds requests of as many adapters.

    On a CPU, 0.32 takes the index -1 of tokens without an adapter for the last one, so that the
    base answers as that adapter in a batch with others (vllm/lora/ops/torch_ops/lora_ops.py). There
    is one more than is used, which stays empty.
    """
    if not info.lora_count or has_flag(given, ENABLE_LORA):
        return []
    count = min(info.lora_count, MAX_LORAS) + (not on_gpu)
    rank = next(rank for rank in LORA_RANKS if rank >= info.lora_rank)
    return [ENABLE_LORA, "--max-loras", str(count), "--max-lora-rank", str(rank)]


def count_lora_bytes(info: ModelInfo, arguments: Sequence[str]) -> int:
    """Return the bytes of these: in 16 bits, two matrices beside each one of every layer."""
    width, each = info.embedding_length or 0, info.key_length or 0
    inner = info.metadata.get(f"{info.architecture}.feed_forward_length")
    queries, keys = (info.head_count or 0) * each, max(info.cached_heads, default=0) * each
    layer = 7 * width + 2 * queries + 2 * keys
    layer += 3 * (inner if isinstance(inner, int) else 4 * width)
    return int(arguments[2]) * int(arguments[4]) * layer * (info.block_count or 0) * 2
