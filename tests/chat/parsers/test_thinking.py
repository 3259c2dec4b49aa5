from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.chat.parsers.thinking import ThinkSplitter, Trim

CASES = [
    # text, opened, thinking, content
    ("<think>a</think>b", False, "a", "b"),
    ("<think>\na b\n</think>\n\nc\nd", False, "a b", "c\nd"),
    (" \n<think>a</think>b", False, "a", "b"),
    ("plain", False, "", "plain"),
    ("  plain", False, "", "  plain"),
    ("", False, "", ""),
    ("  ", False, "", "  "),
    ("<thin", False, "", "<thin"),
    ("<thinker>", False, "", "<thinker>"),
    ("say <think>x</think>", False, "", "say <think>x</think>"),
    ("<think></think>b", False, "", "b"),
    ("<think>\n\n</think>\n\nb", False, "", "b"),
    ("<think>never closed", False, "never closed", ""),
    ("<think>never closed </thi", False, "never closed </thi", ""),
    ("<think>a < b </t> c</think>d", False, "a < b </t> c", "d"),
    ("<think>a</think>b</think>c<think>d", False, "a", "b</think>c<think>d"),
    ("a</think>b", True, "a", "b"),
    ("<think>a</think>b", True, "a", "b"),
    ("\n<think>\na</think>b", True, "a", "b"),
    ("never closed", True, "never closed", ""),
    ("<thin", True, "<thin", ""),
    ("", True, "", ""),
    ("</think>b", True, "", "b"),
    ("<thought>a</thought>b", False, "a", "b"),
    ("<seed:think>a </think> b</seed:think>c", False, "a </think> b", "c"),
    ("[THINK]a[/THINK]b", False, "a", "b"),
    ("a[/THINK]b", True, "a", "b"),
    ("◁think▷a◁/think▷b", False, "a", "b"),
    ("<|START_THINKING|>a<|END_THINKING|>b", False, "a", "b"),
    ("<|channel>thought\na\n<channel|>b", False, "a", "b"),
    ("Here is my thought process:\na\nHere is my response:\nb", False, "a", "b"),
    ("Here is my answer: b", False, "", "Here is my answer: b"),
    ("Here is my", False, "", "Here is my"),
    # gpt-oss: as llama.cpp gives it, without the tokens that end a message
    (
        "<|channel|>analysis<|message|>Think é.<|start|>assistant<|channel|>final<|message|>Hi!",
        False,
        "Think é.",
        "Hi!",
    ),
    (
        "<|channel|>analysis<|message|>One<|end|><|start|>assistant<|channel|>analysis<|message|>"
        "Two<|end|><|start|>assistant<|channel|>final<|message|>a < b <| c<|return|>",
        False,
        "One\nTwo",
        "a < b <| c",
    ),
    (
        "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
        '<|message|>{"a": 1}<|call|>',
        False,
        "T",
        'I look.<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>',
    ),
    (
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}',
        False,
        "",
        '<|channel|>commentary to=functions.f<|message|>{"a": 1}',
    ),
    ("<|channel|>analysis<|message|>cut of", False, "cut of", ""),
    ("<|channel|>final<|message|>cut <|en", False, "", "cut <|en"),
    ("<|channel|>anal", False, "", ""),
    ("<|channel|>analysis<|message|>T<|start|>assistant<|chan", False, "T", ""),
    ("<|channel|>a question without end", False, "", "a question without end"),
    ("<|channel|>" + "x" * 500, False, "", "x" * 500),
]


def split_thinking(text: str, *, opened: bool = False, calls: bool = True) -> tuple[str, str]:
    """Split a whole text into (thinking, content)."""
    splitter = ThinkSplitter(opened=opened, calls=calls)
    thinking, content = splitter.feed(text)
    more_thinking, more_content = splitter.finish()
    return thinking + more_thinking, content + more_content


def pieces(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    places = sorted(chance.randint(0, len(text)) for _ in range(chance.randint(0, 6)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize(("text", "opened", "thinking", "content"), CASES)
def test_any_cut(text: str, opened: bool, thinking: str, content: str) -> None:
    assert split_thinking(text, opened=opened) == (thinking, content)
    for parts in (list(text), *(pieces(text, seed) for seed in range(30))):
        splitter = ThinkSplitter(opened=opened)
        got = [splitter.feed(part) for part in parts] + [splitter.finish()]
        assert ("".join(t for t, _ in got), "".join(c for _, c in got)) == (thinking, content)


@pytest.mark.parametrize(
    ("text", "thinking", "content"),
    [
        ("<think>\n\na \n b\n</think>\n\nc\n", "a \n b\n", "c\n"),
        ("<think>a\n\n</think>", "a\n\n", ""),
        ("<think>never closed\n", "never closed\n", ""),
        ("<think>never closed\n</thi", "never closed\n</thi", ""),
        ("<think>\n\n</think>\n\nb", "", "b"),
        ("  plain\n", "", "  plain\n"),
    ],
)
def test_any_cut_with_the_end_kept(text: str, thinking: str, content: str) -> None:
    for parts in (list(text), *(pieces(text, seed) for seed in range(30))):
        splitter = ThinkSplitter(keeps_end=True)
        got = [splitter.feed(part) for part in parts] + [splitter.finish()]
        assert ("".join(t for t, _ in got), "".join(c for _, c in got)) == (thinking, content)


def test_what_is_certain_comes_at_once() -> None:
    splitter = ThinkSplitter()
    assert splitter.feed("<think>one") == ("one", "")
    assert splitter.feed(" two") == (" two", "")
    assert splitter.feed("</think>three") == ("", "three")
    assert splitter.feed(" four") == ("", " four")


@given(
    st.lists(
        st.sampled_from(
            [
                "<think>",
                "</think>",
                "<",
                "th",
                " ",
                "\n",
                "x",
                "[THINK]",
                "[/THINK]",
                "<|channel|>",
                "<|message|>",
                "<|start|>",
                "<|end|>",
                "analysis",
                "final",
                "to=f",
                "|>",
                "<|",
            ]
        ),
        max_size=12,
    ),
    st.booleans(),
    st.integers(0, 99),
)
def test_cut_never_matters(parts: list[str], opened: bool, seed: int) -> None:
    text = "".join(parts)
    splitter = ThinkSplitter(opened=opened)
    got = [splitter.feed(part) for part in pieces(text, seed)] + [splitter.finish()]
    assert ("".join(t for t, _ in got), "".join(c for _, c in got)) == split_thinking(
        text, opened=opened
    )


def test_a_call_that_nobody_reads_is_text_without_tags() -> None:
    text = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
    assert split_thinking(text, calls=False) == ("", '{"a": 1}')


@pytest.mark.parametrize(
    ("events", "thinking", "text"),
    [
        ([("", "  plain"), ("", "\n")], "", "  plain\n"),
        ([("\n", ""), ("Hm, ", ""), ("so.\n", ""), ("", "\n\n"), ("", "Hello\n")],
         "Hm, so.", "Hello\n"),
        ([("a\n", ""), ("\nb", "")], "a\n\nb", ""),
        ([("\n\n", ""), ("", "\n\nHi")], "", "Hi"),
        ([("a\n", "\n b"), ("", " c")], "a", " b c"),
        ([(" a", ""), ("", " b")], " a", " b"),
        ([("a\n", ""), ("", "b"), ("\nc", ""), ("", "\nd")], "ac", "bd"),
    ],
)  # fmt: skip
def test_white_space_around_thinking_that_an_engine_split_off(events, thinking, text):
    trim = Trim()
    pairs = [trim.feed(*event) for event in events]
    assert ("".join(a for a, _ in pairs), "".join(b for _, b in pairs)) == (thinking, text)
