"""Which of vLLM's parsers of tool calls and of thinking fit a model. Pure.

A wrong reasoning parser takes a model's whole answer for thinking, a wrong tool parser lets calls
through as text. So one is only named where the model's type *and* the marks in its chat template
say the same; for everything else vllama tells thinking and calls apart itself. The names are
those of vLLM's registries (`vllm/tool_parsers`, `vllm/reasoning`, 0.32).
"""

from __future__ import annotations

from dataclasses import dataclass

from vllama.models.types import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A parser for models of these types whose template has all `marks` and none of `never`."""

    parser: str
    types: tuple[str, ...]
    marks: tuple[str, ...]
    never: tuple[str, ...] = ()


HERMES_TYPES = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe", "llama")
QWEN3_TYPES = ("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe")
QWEN3_XML_TYPES = ("qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe")

TOOLS = (
    Row(
        parser="hermes",
        types=HERMES_TYPES,
        marks=("<tool_call>", '"arguments'),
        never=("<function=", "<arg_key>"),
    ),
    Row(
        parser="qwen3_coder",
        types=QWEN3_XML_TYPES,
        marks=("<tool_call>", "<function=", "<parameter="),
    ),
    Row(
        parser="llama3_json",
        types=("llama",),
        marks=("ipython", '"parameters"', "<|start_header_id|>"),
    ),
    Row(
        parser="mistral",
        types=("mistral", "mixtral", "mistral3"),
        marks=("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
    ),
    Row(
        parser="openai",
        types=("gpt_oss",),
        marks=("<|channel|>", "<|call|>"),
    ),
    Row(
        parser="deepseek_v3",
        types=("deepseek_v3",),
        marks=("<｜tool▁calls▁begin｜>", "```json"),
    ),
    Row(
        parser="deepseek_v31",
        types=("deepseek_v3",),
        marks=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
        never=("```json",),
    ),
    Row(parser="kimi_k2", types=("kimi_k2",), marks=("<|tool_calls_section_begin|>",)),
    Row(parser="glm45", types=("glm4_moe",), marks=("<tool_call>", "<arg_key>", "<arg_value>")),
    Row(
        parser="minimax_m2",
        types=("minimax", "minimax_m2"),
        marks=("<minimax:tool_call>", "<invoke"),
    ),
    Row(parser="seed_oss", types=("seed_oss",), marks=("<seed:tool_call>",)),
    Row(parser="internlm", types=("internlm2",), marks=("<|plugin|>",)),
)

REASONING = (
    # models with a switch, and those that always think: the template opens the thinking for them
    Row(
        parser="qwen3",
        types=QWEN3_TYPES,
        marks=("<think>", "enable_thinking"),
    ),
    Row(
        parser="deepseek_r1",
        types=("deepseek_v3", "qwen2", "llama", "qwen3"),
        marks=("<｜Assistant｜><think>\\n",),
    ),
    Row(parser="openai_gptoss", types=("gpt_oss",), marks=("<|channel|>", "analysis")),
    Row(parser="glm45", types=("glm4_moe",), marks=("<think>", "enable_thinking")),
    Row(parser="seed_oss", types=("seed_oss",), marks=("<seed:think>",)),
)


def choose_tool_parser(info: ModelInfo) -> str | None:
    """Return the name of the parser of the model's tool calls, None if none is sure to fit."""
    template = info.chat_template or ""
    return _first(TOOLS, info) if "tools" in template else None


def choose_reasoning_parser(info: ModelInfo) -> str | None:
    """Return the name of the parser of the model's thinking, None if none is sure to fit."""
    return _first(REASONING, info)


def _first(rows: tuple[Row, ...], info: ModelInfo) -> str | None:
    template = info.chat_template or ""
    for row in rows:
        fits = all(mark in template for mark in row.marks)
        if info.architecture in row.types and fits and not any(m in template for m in row.never):
            return row.parser
    return None
