from __future__ import annotations

import pytest

from vllama.models.headers.chat_templates import read_template_capabilities
from vllama.models.types import Capability

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
