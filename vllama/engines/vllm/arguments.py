"""Arguments for vLLM that follow from the model's files: formats, drafts, and its parsers. Pure.

The wrong reasoning parser takes a model's whole answer for thinking, and the wrong tool parser lets
calls through as text. So a parser is named only where the model's type *and* the marks in its chat
template agree; for all other models vllama splits thinking and calls itself. The names are those of
vLLM's registries (`vllm/tool_parsers`, `vllm/reasoning`, 0.32).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from vllama.engines.argv import has_flag
from vllama.engines.base import Settings
from vllama.models.types import Bundle, Capability, ModelInfo

SPECULATION = ("--speculative-config", "-sc")
TRANSFER = ("--kv-transfer-config", "--kv-offloading-size")
METHODS = {"simple": "draft_model", "mtp": "mtp"}
DRAFT_TOKENS, HEAD_TOKENS = 5, 1


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserRule:
    """A parser for models of these types whose template has all `marks`, none of `excluded`."""

    parser: str
    types: tuple[str, ...]
    marks: tuple[str, ...]
    excluded: tuple[str, ...] = ()


HERMES_TYPES = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe", "llama")
QWEN3_TYPES = ("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe")
QWEN3_XML_TYPES = ("qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe")

TOOLS = (
    ParserRule(
        parser="hermes",
        types=HERMES_TYPES,
        marks=("<tool_call>", '"arguments'),
        excluded=("<function=", "<arg_key>"),
    ),
    ParserRule(
        parser="qwen3_coder",
        types=QWEN3_XML_TYPES,
        marks=("<tool_call>", "<function=", "<parameter="),
    ),
    ParserRule(
        parser="llama3_json",
        types=("llama",),
        marks=("ipython", '"parameters"', "<|start_header_id|>"),
    ),
    ParserRule(
        parser="mistral",
        types=("mistral", "mixtral", "mistral3"),
        marks=("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
    ),
    ParserRule(
        parser="openai",
        types=("gpt_oss",),
        marks=("<|channel|>", "<|call|>"),
    ),
    ParserRule(
        parser="deepseek_v3",
        types=("deepseek_v3",),
        marks=("<｜tool▁calls▁begin｜>", "```json"),
    ),
    ParserRule(
        parser="deepseek_v31",
        types=("deepseek_v3",),
        marks=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
        excluded=("```json",),
    ),
    ParserRule(parser="kimi_k2", types=("kimi_k2",), marks=("<|tool_calls_section_begin|>",)),
    ParserRule(
        parser="glm45", types=("glm4_moe",), marks=("<tool_call>", "<arg_key>", "<arg_value>")
    ),
    ParserRule(
        parser="minimax_m2",
        types=("minimax", "minimax_m2"),
        marks=("<minimax:tool_call>", "<invoke"),
    ),
    ParserRule(parser="seed_oss", types=("seed_oss",), marks=("<seed:tool_call>",)),
    ParserRule(parser="internlm", types=("internlm2",), marks=("<|plugin|>",)),
)

REASONING = (
    # models with a switch, and those that always think: their template opens the thinking
    ParserRule(
        parser="qwen3",
        types=QWEN3_TYPES,
        marks=("<think>", "enable_thinking"),
    ),
    ParserRule(
        parser="deepseek_r1",
        types=("deepseek_v3", "qwen2", "llama", "qwen3"),
        marks=("<｜Assistant｜><think>\\n",),
    ),
    ParserRule(parser="openai_gptoss", types=("gpt_oss",), marks=("<|channel|>", "analysis")),
    ParserRule(parser="glm45", types=("glm4_moe",), marks=("<think>", "enable_thinking")),
    ParserRule(parser="seed_oss", types=("seed_oss",), marks=("<seed:think>",)),
)


def choose_tool_parser(info: ModelInfo) -> str | None:
    """Return the parser for the model's tool calls, None if none is certain to fit."""
    if info.mistral_tokenizer:
        return "mistral" if Capability.TOOLS in info.capabilities else None
    template = info.chat_template or ""
    return _find_parser(TOOLS, info) if "tools" in template else None


def choose_reasoning_parser(info: ModelInfo) -> str | None:
    """Return the parser for the model's thinking, None if none is certain to fit."""
    return _find_parser(REASONING, info)


def _find_parser(rows: tuple[ParserRule, ...], info: ModelInfo) -> str | None:
    template = info.chat_template or ""
    for row in rows:
        fits = all(mark in template for mark in row.marks)
        if info.architecture in row.types and fits and not any(m in template for m in row.excluded):
            return row.parser
    return None
