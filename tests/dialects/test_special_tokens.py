"""Calls and thinking that families mark by special tokens, which an engine leaves in the text.

A special token comes in one piece. Nothing of one is left, in any dialect, streamed or whole.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.chat.cuts import run
from tests.chat.parsers.test_families import FAMILIES, SCHEMAS
from tests.dialects.test_quoted_calls import DIALECTS, Said, event
from tests.engines.test_vllm import traits
from vllama.chat.filters import compose_filters
from vllama.chat.parsers.call_values import Toolset
from vllama.chat.parsers.thinking import PAIRS
from vllama.chat.reply import Reply

MARK = re.compile(r"<\|[^<>|]*\|>|<[^<>\s=]+>|\[/?[A-Z_]+\]|◁/?think▷")
NOISE = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|im_end|>")
PAIR_TOKENS = {"<|channel>thought": "<|channel>"}  # Gemma 4's is a token and a word
MARKED = [row for row in FAMILIES if row[1].name == "TAGGED" or "[TOOL_CALLS]" in row[2]]


def say(dialect: str, stream: bool, text: str, form: object, *, keeps: bool = False) -> Said:
    """Return what the client reads of a text whose marks are special tokens."""
    own = tuple({*MARK.findall(text), *NOISE, *(PAIR_TOKENS.get(p, p) for p in PAIRS if "<" in p)})
    pieces = [piece for piece in re.split(f"({'|'.join(map(re.escape, own))})", text) if piece]
    data = event(role="assistant") + b"".join(event(content=piece) for piece in pieces)
    make, read = DIALECTS[dialect]
    writer = make(stream)
    filters = compose_filters(
        traits(),
        tools=Toolset(schemas=SCHEMAS, form=form),  # type: ignore[arg-type]
        thinks=True,
        is_whole=not writer.streams,
        special_tokens=() if keeps else own,
    )
    return read(run(Reply(writer, filters), [data + event("stop") + b"data: [DONE]\n\n"]))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_familys_call_after_every_kind_of_thinking(dialect: str, stream: bool) -> None:
    assert len(MARKED) > 35
    pairs = list(PAIRS.items())
    for number, (name, form, text, content, calls) in enumerate(MARKED):
        opening, closing = pairs[number % len(pairs)]
        start, *middle, end = NOISE
        whole = f"{opening}I look.{closing}{start}{text}{''.join(middle)}{end}"
        if name == "gpt-oss":
            whole = f"<|channel|>analysis<|message|>I look.<|end|><|start|>assistant{text}"
        thinking, said, count = say(dialect, stream, whole, form)
        assert (name, thinking, said.strip(), count) == (
            name,
            "I look.",
            content.strip(),
            len(calls),
        )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_marks_in_a_text_without_a_call_are_taken_out_unless_they_were_asked_for(
    dialect: str, stream: bool
) -> None:
    text = "<think>I<|im_end|> look.</think>It is<|eot_id|> fine.<|im_end|>"
    tagged = MARKED[0][1]
    assert say(dialect, stream, text, tagged) == ("I look.", "It is fine.", 0)
    told = ("I<|im_end|> look.", "It is<|eot_id|> fine.<|im_end|>", 0)
    assert say(dialect, stream, text, tagged, keeps=True) == told


def test_what_is_looked_for_is_what_the_engine_leaves() -> None:
    assert traits().fields_for_marks == {
        "skip_special_tokens": False, "spaces_between_special_tokens": False,
    }  # fmt: skip
    assert not traits().parses_tools and not replace(traits()).splits_reasoning
