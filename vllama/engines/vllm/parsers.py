"""Choice of vLLM's own parsers for a model's tool calls and thinking.

The wrong reasoning parser takes a model's whole response for thinking, and the wrong tool parser
lets calls through as text. So a parser is named only where the marks in the chat template, and for
marks of several families the model's type, fit one row, and only if the installed vLLM has it. For
all other models vllama splits thinking and calls itself, also where vLLM's parser loses calls in
streams (phi4_mini_json, gigachat3): it asks for the special tokens, which vLLM
strips by default. The names are those of vLLM's registries (`vllm/tool_parsers`, `vllm/reasoning`,
0.32 and 0.33).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from vllama.models.types import Capability, ModelInfo

TOOLS_FOLDER, REASONING_FOLDER = "tool_parsers", "reasoning"
_REGISTERED = re.compile(r'^    "([\w.-]+)": \(', re.MULTILINE)


class Row(NamedTuple):
    """A parser for models of these types (none: any) whose template has all `marks`, no `other`.

    Without the `token` among the model's own, the parser ends vLLM at its start.
    """

    parser: str
    types: str
    marks: tuple[str, ...]
    other: tuple[str, ...] = ()
    token: str = ""


_HERMES = "qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe llama"
_QWEN3_XML = "qwen3_moe qwen3_next qwen3_5 qwen3_5_moe"
_DEEPSEEK = "<｜tool▁calls▁begin｜>"

# types and marks that several families share, then marks of one family that vllama does not read
TOOLS = (
    Row("hermes", _HERMES, ("<tool_call>", '"arguments'), ("<function=", "<arg_key>")),
    Row("qwen3_coder", _QWEN3_XML, ("<tool_call>", "<function=", "<parameter=")),
    Row(
        "llama3_json",
        "llama",
        ("ipython", '"parameters"', "<|start_header_id|>"),
        token="<|python_tag|>",
    ),
    Row("mistral", "mistral mixtral mistral3", ("[TOOL_CALLS]", "[AVAILABLE_TOOLS]")),
    Row("openai", "gpt_oss", ("<|channel|>", "<|call|>")),
    Row("deepseek_v3", "deepseek_v3", (_DEEPSEEK, "```json")),
    Row("deepseek_v31", "deepseek_v3", (_DEEPSEEK, "<｜tool▁sep｜>"), ("```json",)),
    Row("kimi_k2", "kimi_k2", ("<|tool_calls_section_begin|>",)),
    Row("glm45", "glm4_moe", ("<tool_call>", "<arg_key>", "<arg_value>")),
    Row("minimax_m2", "minimax minimax_m2", ("<minimax:tool_call>", "<invoke")),
    Row("seed_oss", "seed_oss", ("<seed:tool_call>",)),
    Row("internlm", "internlm2", ("<|plugin|>",)),
    Row("hy_v4", "hy_v4", ("<tool_calls", "<arg_key")),
    Row("hy_v3", "hy_v3", ("<tool_calls", "<tool_sep")),
    Row("apertus", "", ("<|tools_prefix|>",)),
    Row("deepseek_v41", "", ("<｜DSML｜ calls>",)),
    Row("inkling", "", ("<|content_invoke_tool_json|>",)),
    Row("k2_horizon", "", ("<ifm|tool_calls>",)),
    Row("kimi_k3", "", ("<|open|>", "<|sep|>", "tools")),
    Row("minicpm5", "", ("<function name=",)),
    Row("minimax_m3", "", ("]<]minimax[>[",)),
    Row("muse", "", ("<atem:invoke",)),
    Row("muse_glimmer", "", ("<atem:invoke",)),
    Row("plamo3", "", ("<|plamo:begin_tool_requests:plamo|>",)),
    Row("step3", "", ("<｜tool_calls_begin｜>",)),
)
REASONING = (
    # models with a switch, and those that always think: their template opens the thinking
    Row("qwen3", "qwen3 qwen3_next " + _QWEN3_XML, ("<think>", "enable_thinking")),
    Row("deepseek_r1", "deepseek_v3 qwen2 llama qwen3", ("<｜Assistant｜><think>\\n",)),
    Row("openai_gptoss", "gpt_oss", ("<|channel|>", "analysis")),
    Row("glm45", "glm4_moe", ("<think>", "enable_thinking")),
    Row("seed_oss", "seed_oss", ("<seed:think>",)),
    Row("hunyuan_a13b", "hunyuan_v1_moe", ("<think>", "<answer>")),
    Row("hy_v4", "hy_v4", ("<think",)),
    Row("hy_v3", "hy_v3", ("<think",)),
    Row("inkling", "", ("<|content_thinking|>",)),
    Row("k2_horizon", "", ("<ifm|think",)),
    Row("kimi_k3", "", ("<|open|>", "<|sep|>", "think")),
    Row("minimax_m3", "", ("<mm:think>",)),
    Row("muse", "", ("to=self<|message|>",)),
    Row("muse_glimmer", "", ("to=self<|message|>",)),
    Row("plamo3", "", ("<|plamo:begin_think:plamo|>",)),
)


def read_registries(package: Path | None) -> frozenset[tuple[str, str]] | None:
    """Return the parsers of an installed vLLM, as (folder, name); None if its package is unknown.

    Nothing is imported. A version whose registries are elsewhere (before 0.12) has none here.
    """
    if package is None:
        return None
    found: set[tuple[str, str]] = set()
    for folder in (TOOLS_FOLDER, REASONING_FOLDER):
        try:
            text = (package / folder / "__init__.py").read_text(errors="replace")
        except OSError:
            continue
        found.update((folder, name) for name in _REGISTERED.findall(text))
    return frozenset(found)


def choose_tool_parser(
    info: ModelInfo, known: frozenset[tuple[str, str]] | None = None
) -> str | None:
    """Return the parser for the model's tool calls, None if none is certain to fit.

    `known` are those of the installed vLLM; None: all of the table.
    """
    if info.mistral_tokenizer:
        return "mistral" if Capability.TOOLS in info.capabilities else None
    fits = _find(TOOLS, info) if "tools" in (info.chat_template or "") else ()
    return next((name for name in fits if known is None or (TOOLS_FOLDER, name) in known), None)


def choose_reasoning_parser(
    info: ModelInfo, known: frozenset[tuple[str, str]] | None = None
) -> str | None:
    """Return the parser for the model's thinking, None if none is certain to fit."""
    fits = _find(REASONING, info)
    return next((name for name in fits if known is None or (REASONING_FOLDER, name) in known), None)


def _find(rows: tuple[Row, ...], info: ModelInfo) -> Iterable[str]:
    template = info.chat_template or ""
    for row in rows:
        is_type = not row.types or info.architecture in row.types.split()
        has_marks = all(mark in template for mark in row.marks)
        has_token = not (row.token and info.special_tokens) or row.token in info.special_tokens
        if not (is_type and has_marks and has_token):
            continue
        if not any(mark in template for mark in row.other):
            yield row.parser
