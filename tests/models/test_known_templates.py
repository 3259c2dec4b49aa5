"""Files without a chat template: the family is recognized by its control tokens."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import gguf
import pytest

from tests.jinja import rendered
from tests.models.gguf.test_header import header, strings, text
from tests.models.test_info import CONFIG, at, safetensors
from tests.tiny import TEMPLATE, write_tiny_gguf
from vllama.chat.conversation import render_continued
from vllama.chat.request import Message
from vllama.models.headers.chat_templates import (
    KNOWN,
    find_known_template,
    find_stops,
    read_template_capabilities,
)
from vllama.models.headers.gguf.header import GgufHeader, parse_header
from vllama.models.headers.info import combine_headers, describe_template, read_info
from vllama.models.types import Capability, ModelInfo

GEMMA = ("<start_of_turn>", "<end_of_turn>")
CHATML = ("<|im_start|>", "<|im_end|>")
THINK = ("<think>", "</think>")
DEEPSEEK = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")
INST = ("[INST]", "[/INST]", "</s>")


@pytest.mark.parametrize(
    ("tokens", "family"),
    [
        (GEMMA, "gemma"),
        (("<|turn>", "<turn|>"), "gemma 4"),
        (CHATML, "ChatML"),
        ((*CHATML, *THINK), "ChatML, with thinking"),
        ((*CHATML, "<|im_sep|>"), "phi-4"),
        ((*CHATML, "<end_of_utterance>"), "smolvlm"),
        (("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "llama 3"),
        (("<|header_start|>", "<|header_end|>", "<|eot|>"), "llama 4"),
        (("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"), "harmony"),
        (("<|user|>", "<|assistant|>", "<|end|>"), "phi-3"),
        (("<|user|>", "<|assistant|>", "<|end|>", "<|tool_call|>"), "phi-4-mini"),
        (DEEPSEEK, "deepseek"),
        # a distilled one has its teacher's turns in the vocabulary of another family
        ((*DEEPSEEK, *CHATML, *THINK), "deepseek, with thinking"),
        (INST, "mistral"),
        ((*INST, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), "mistral"),
        (
            (
                "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>",
                "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>",
            ),
            "command-r",
        ),
        (("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"), "granite"),
        (
            ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
            "kimi k2",
        ),
        # not all of the marks
        (GEMMA[:1], None),
        (GEMMA[1:], None),
        (("<|im_start|>",), None),
        (("<|start_header_id|>", "<|eot_id|>"), None),
        (("<|user|>", "<|assistant|>"), None),
        (("[INST]", "</s>"), None),
        ((), None),
    ],
)  # fmt: skip
def test_the_family_of_a_vocabulary(tokens: tuple[str, ...], family: str | None) -> None:
    for sentencepiece in (True, False):
        row = find_known_template(tokens, sentencepiece=sentencepiece)
        assert (row.family if row else None) == family


TURNS = "{% for m in messages %}OPEN{{ m.role }}\n{{ m.content }}CLOSE{% endfor %}"


@pytest.mark.parametrize(
    ("template", "stops"),
    [
        (TURNS.replace("OPEN", CHATML[0]).replace("CLOSE", CHATML[1]), [*CHATML]),
        (TURNS.replace("OPEN", GEMMA[0]).replace("CLOSE", GEMMA[1]), [*GEMMA]),
        (TURNS.replace("OPEN", "[INST]").replace("CLOSE", "[/INST] x</s>"), [*INST]),
        (TURNS.replace("OPEN", CHATML[0]).replace("CLOSE", "\n"), []),  # not all of the marks
        (TURNS.replace("OPEN", "{{ tools }}" + CHATML[0]).replace("CLOSE", CHATML[1]), []),
        (TURNS.replace("OPEN", "<think>" + CHATML[0]).replace("CLOSE", CHATML[1]), []),
        (TURNS, []),
        ("", []),
    ],
)
def test_stops_of_a_plain_template(template: str, stops: list[str]) -> None:
    assert find_stops(template) == stops


def info_of(path: Path, **changes: object) -> ModelInfo:
    return read_info(at(write_tiny_gguf(path, **changes)))  # type: ignore[arg-type]


def test_a_file_without_a_template(tmp_path: Path) -> None:
    info = info_of(tmp_path / "m.gguf", template=None, tokens=GEMMA)
    assert (info.template_family, info.turn_end) == ("gemma", ("<end_of_turn>", 356))
    assert info.capabilities == {Capability.COMPLETION}
    bundle = at(tmp_path / "m.gguf")
    assert describe_template(bundle, info) == "gemma, recognized by its tokens"


def test_the_files_own_template_wins(tmp_path: Path) -> None:
    info = info_of(tmp_path / "m.gguf", tokens=GEMMA)
    assert (info.chat_template, info.template_family, info.turn_end) == (TEMPLATE, None, None)
    assert describe_template(at(tmp_path / "m.gguf"), info) == ""


def test_none_is_recognized(tmp_path: Path) -> None:
    info = info_of(tmp_path / "m.gguf", template=None)
    assert (info.chat_template, info.template_family) == (None, None)
    words = describe_template(at(tmp_path / "m.gguf"), info)
    assert words == "none, and none recognized: prompts are sent as plain text"


def test_one_that_makes_vectors_has_no_turns(tmp_path: Path) -> None:
    def pools(writer: gguf.GGUFWriter) -> None:
        writer.add_pooling_type(gguf.PoolingType.MEAN)

    info = info_of(tmp_path / "m.gguf", template=None, tokens=GEMMA, extra=pools)
    assert (info.template_family, info.capabilities) == (None, {Capability.EMBEDDING})
    assert describe_template(at(tmp_path / "m.gguf"), info) == ""


def large(kinds: dict[str, int], count: int = 9000) -> GgufHeader:
    """Return a header whose vocabulary is too long to be built: `kinds` are among its tokens."""
    tokens = [f"t{n}" for n in range(count)]
    types = [1] * count
    for number, (token, kind) in enumerate(kinds.items()):
        place = 1500 + 3000 * number
        tokens[place], types[place] = token, kind
    numbers = text("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, count)
    numbers += struct.pack(f"<{count}i", *types)
    name = text("general.architecture") + struct.pack("<I", 8) + text("a")
    data = header(name + strings("tokenizer.ggml.tokens", tokens) + numbers, 3)
    return parse_header(data, total_bytes=len(data), source="x")


@pytest.mark.parametrize(
    ("kinds", "family"),
    [
        ({"<start_of_turn>": 3, "<end_of_turn>": 3}, "gemma"),
        ({"<start_of_turn>": 4, "<end_of_turn>": 3}, "gemma"),
        # a text that happens to look like a mark
        ({"<start_of_turn>": 1, "<end_of_turn>": 1}, None),
        ({"<start_of_turn>": 3, "<end_of_turn>": 1}, None),
        ({"<start_of_turn>": 5, "<end_of_turn>": 6}, None),
        ({"<start_of_turn>x": 3, "x<end_of_turn>": 3}, None),
        # a token that has all of an entry of the list inside it
        ({"\x0f\0\0\0\0\0\0\0<start_of_turn>": 3, "<end_of_turn>": 3}, None),
    ],
)
def test_only_control_tokens_count(kinds: dict[str, int], family: str | None) -> None:
    found = combine_headers([large(kinds)])
    assert found.template_family == family
    if family:
        assert found.turn_end == ("<end_of_turn>", 4500)


def test_a_folder_without_a_template(tmp_path: Path) -> None:
    folder = safetensors(tmp_path / "m", CONFIG, model={"w": ("F16", [1], 2)})
    tokens = [{"id": 7, "content": "<|im_start|>"}, {"id": 8, "content": "<|im_end|>", "x": 1}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens, "model": {}}))
    info = read_info(at(folder))
    assert (info.template_family, info.turn_end) == ("ChatML", ("<|im_end|>", 8))
    (folder / "tokenizer.json").write_text("{")
    assert read_info(at(folder)).template_family is None
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert read_info(at(folder)).chat_template == "{{ messages }}"


TURNS = (
    Message(role="system", content="S"),
    Message(role="user", content="U"),
    Message(role="assistant", content="A"),
    Message(role="user", content="V"),
)
# what the makers' templates and guides say, one after the other
FORMATS = {
    "harmony": (
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, "
        "final. Channel must be included for every message.<|end|>"
        "<|start|>developer<|message|># Instructions\n\nS<|end|>"
        "<|start|>user<|message|>U<|end|><|start|>assistant<|channel|>final<|message|>A<|end|>"
        "<|start|>user<|message|>V<|end|><|start|>assistant"
    ),
    "gemma 4": (
        "<s><|turn>system\nS<turn|>\n<|turn>user\nU<turn|>\n<|turn>model\nA<turn|>\n"
        "<|turn>user\nV<turn|>\n<|turn>model\n"
    ),
    "gemma": (
        "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
        "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n"
    ),
    "llama 4": (
        "<s><|header_start|>system<|header_end|>\n\nS<|eot|>"
        "<|header_start|>user<|header_end|>\n\nU<|eot|>"
        "<|header_start|>assistant<|header_end|>\n\nA<|eot|>"
        "<|header_start|>user<|header_end|>\n\nV<|eot|><|header_start|>assistant<|header_end|>\n\n"
    ),
    "llama 3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "phi-4": (
        "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>U<|im_end|>"
        "<|im_start|>assistant<|im_sep|>A<|im_end|><|im_start|>user<|im_sep|>V<|im_end|>"
        "<|im_start|>assistant<|im_sep|>"
    ),
    "kimi k2": (
        "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>U<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>A<|im_end|><|im_user|>user<|im_middle|>V<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>"
    ),
    "deepseek, with thinking": (
        "<s>S<｜User｜>U<｜Assistant｜>A<｜end▁of▁sentence｜><｜User｜>V<｜Assistant｜><think>\n"
    ),
    "deepseek": "<s>S<｜User｜>U<｜Assistant｜>A<｜end▁of▁sentence｜><｜User｜>V<｜Assistant｜>",
    "smolvlm": (
        "<|im_start|>System: S<end_of_utterance>\nUser: U<end_of_utterance>\n"
        "Assistant: A<end_of_utterance>\nUser: V<end_of_utterance>\nAssistant:"
    ),
    "ChatML": (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
        "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    "command-r": (
        "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>U<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>A<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>V<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
    ),
    "granite": (
        "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>U<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>A<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>V<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>"
    ),
    "phi-4-mini": (
        "<|system|>S<|end|><|user|>U<|end|><|assistant|>A<|end|><|user|>V<|end|><|assistant|>"
    ),
    "phi-3": (
        "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nV<|end|>\n"
        "<|assistant|>\n"
    ),
}  # fmt: skip
FORMATS["ChatML, with thinking"] = FORMATS["ChatML"]
MISTRAL = {
    (True, True): "<s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] U[/INST] A</s>[INST] V[/INST]",
    (True, False): "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]U[/INST]A</s>[INST]V[/INST]",
    (False, True): "<s>[INST] U[/INST] A</s>[INST] S\n\nV[/INST]",
    (False, False): "<s>[INST]U[/INST]A</s>[INST]S\n\nV[/INST]",
}


def test_every_familys_format() -> None:
    for row in KNOWN:
        expected = FORMATS.get(row.family)
        if expected is None:
            has_mark = "[SYSTEM_PROMPT]" in row.marks
            expected = MISTRAL[has_mark, bool(row.sentencepiece)]
        assert rendered(row.template, TURNS, bos="<s>") == expected, row.family


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: row.family)
def test_in_every_familys_format(row: object) -> None:
    source = row.template  # type: ignore[attr-defined]

    async def render(turns: Sequence[Message], opens: bool) -> str:
        return rendered(source, turns, add_generation_prompt=opens, bos="<s>")

    # an answer that was begun goes on
    begun = Message(role="assistant", content=" begun ")
    assert asyncio.run(render_continued([*TURNS, begun], render)).endswith(" begun ")
    # nothing that was said is lost, also where only the system has spoken
    words = [Message(role=turn.role, content=f"-{turn.content}-") for turn in TURNS]
    for turns in (words[:1], words[1:2], words[:2], words):
        prompt = rendered(source, turns, bos="<s>")
        assert [prompt.count(turn.content) for turn in turns] == [1] * len(turns)
    # a line break at its end would be lost, and blocks would eat one
    assert source == source.strip()
    assert "%}\n" not in source


def test_thinking_is_switched_and_not_shown_again() -> None:
    rows = {row.family: row.template for row in KNOWN}
    thought = [TURNS[1], Message(role="assistant", content="<think>\nhm\n</think>\n\nA"), TURNS[3]]
    for family, end in (
        ("ChatML, with thinking", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ("deepseek, with thinking", "<｜Assistant｜><think>\n\n</think>\n\n"),
    ):
        prompt = rendered(rows[family], thought, enable_thinking=False)
        assert "hm" not in prompt
        assert prompt.endswith(end)
    low = rendered(rows["harmony"], TURNS, reasoning_effort="low", now=0.0)
    assert "\nCurrent date: 19" in low
    assert "\n\nReasoning: low\n\n" in low


TOOLS, THINKING = Capability.TOOLS, Capability.THINKING


@pytest.mark.parametrize(
    ("template", "architecture", "expected"),
    [
        (None, "llama", set()),
        ("{{ messages }}", "llama", set()),
        ("{% if tools %}{{ tools|tojson }}{% endif %}", "qwen2", {TOOLS}),
        ("{{ '<｜tool▁calls▁begin｜>' }}", "deepseek2", set()),
        ("{% if enable_thinking %}", "qwen3", {THINKING}),
        ("{{ content.split('</think>') }}{{ tools }}", "qwen2", {TOOLS, THINKING}),
        ("[THINK]{{ tools }}", "llama", {TOOLS, THINKING}),
        ("<seed:think>", "seed_oss", {THINKING}),
        ("<|channel>thought", "gemma4", {THINKING}),
        ("{{ '<|channel|>analysis<|message|>' }}", "other", {THINKING}),
        ("Here is my thought process:", "granite", {THINKING}),
        (None, "gpt-oss", {THINKING}),
    ],
)
def test_what_a_template_tells(
    template: str | None, architecture: str, expected: set[Capability]
) -> None:
    assert read_template_capabilities(template, architecture) == expected
