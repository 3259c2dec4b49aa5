"""An answer that the client has begun is continued, whatever a template makes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.chat.bodies import adapt_chat, chat_call
from tests.jinja import rendered
from vllama.base.errors import BadRequest
from vllama.chat.conversation import is_continued, join_answers, render_continued
from vllama.chat.engine.traits import Traits
from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.parsers.thinking import is_unfinished
from vllama.chat.request import Message, Sampling
from vllama.chat.templates.go_template_prompt import GoTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Qwen 3: the thinking of the last turn is shown, empty if there is none; the text is trimmed
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}"
    "{% set text = m.content.split('</think>')[-1] %}"
    "{% if loop.last or m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ text.strip() }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
TRIMS = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
ENDS_WITH_USER = (
    "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}" + CHATML
)
LEAVES_OUT = (
    "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
ASKED = Message(role="user", content="Q")
CALL = ToolCall(name="f", arguments={})


def said(text: str, **more: object) -> Message:
    return Message(role="assistant", content=text, **more)  # type: ignore[arg-type]


def by_jinja(source: str, turns: Sequence[Message]) -> str:
    async def render(some: Sequence[Message], opens: bool) -> str:
        return rendered(source, some, add_generation_prompt=opens)

    return asyncio.run(render_continued(turns, render))


@pytest.mark.parametrize(
    ("template", "last", "end"),
    [
        (CHATML, said("The color is bl"), "<|im_start|>assistant\nThe color is bl"),
        (CHATML, said("{"), "<|im_start|>assistant\n{"),
        # nothing is lost of white space, nor of what looks like a tag
        (CHATML, said("  a \n "), "<|im_start|>assistant\n  a \n "),
        (TRIMS, said(" a b "), "<start_of_turn>model\n a b "),
        (THINKS, said("is "), "<|im_start|>assistant\n<think>\n\n</think>\n\nis "),
        (THINKS, said("a </think> b"), "assistant\n<think>\n\n</think>\n\na </think> b"),
        (THINKS, said("is", thinking="hm"), "assistant\n<think>\nhm\n</think>\n\nis"),
        (THINKS, said("", thinking="hm"), "assistant\n<think>\nhm\n</think>\n\n"),
        # thinking that was begun goes where the template begins it
        (THINKS, said("<think>\nI sh"), "<|im_start|>assistant\n<think>\nI sh"),
        (THINKS, said("<think>\nhm\n</think>\n\nis"), "assistant\n<think>\nhm\n</think>\n\nis"),
        (CHATML, said("<think>I sh"), "<|im_start|>assistant\n<think>I sh"),
        # templates that refuse a last answer, or leave it out
        (ENDS_WITH_USER, said("is "), "<|im_end|>\n<|im_start|>assistant\nis "),
        (LEAVES_OUT, said("is "), "Q: Q\nA: is "),
        (CHANNELS, said("is "), "<|end|><|start|>assistant<|channel|>final<|message|>is "),
    ],
)  # fmt: skip
def test_the_prompt_ends_in_the_answer(template: str, last: Message, end: str) -> None:
    prompt = by_jinja(template, [ASKED, last])
    assert prompt.endswith(end)
    assert prompt.count("Q") == (2 if template == LEAVES_OUT else 1)


def test_the_same_text_before_is_no_matter() -> None:
    turns = [ASKED, said("bl"), ASKED, said("bl")]
    opening = rendered(CHATML, turns[:3], add_generation_prompt=True)
    assert by_jinja(CHATML, turns) == opening + "bl"


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (
            "{{ range .Messages }}<{{ .Role }}>{{ .Content }}</>{{ end }}<assistant>",
            "<user>Q</><assistant> a ",
        ),
        ("{{ range .Messages }}{{ .Content }}|{{ end }}", "Q| a "),
        ("[{{ .Prompt }}] {{ .Response }}</s>", "[Q]  a "),
        ("{{ .Prompt }}", "Q a "),
        # one that leaves answers out
        (
            '{{ range .Messages }}{{ if eq .Role "user" }}{{ .Content }}{{ end }}{{ end }}>',
            "Q> a ",
        ),
    ],
)
def test_a_go_template_too(source: str, end: str) -> None:
    template = GoTemplate(source)

    async def render(some: Sequence[Message], opens: bool) -> str:
        return template.chat(some, now=0.0)

    assert asyncio.run(render_continued([ASKED, said(" a ")], render)) == end


def test_a_template_that_refuses_it_all_says_why() -> None:
    with pytest.raises(BadRequest, match="never"):
        by_jinja("{{ raise_exception('never') }}", [ASKED, said("x")])


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([ASKED], [ASKED]),
        ([ASKED, said("a")], [ASKED, said("a")]),
        ([ASKED, said("a"), said("b"), said("c")], [ASKED, said("a\n\nb\n\nc")]),
        ([ASKED, said("")], [ASKED]),
        ([ASKED, said("a"), said("")], [ASKED, said("a")]),
        ([ASKED, said(""), said("a")], [ASKED, said("a")]),
        ([said("")], [said("")]),
        ([ASKED, said("", thinking="hm")], [ASKED, said("", thinking="hm")]),
        ([ASKED, said("", tool_calls=(CALL,))], [ASKED, said("", tool_calls=(CALL,))]),
        (
            [ASKED, said("", tool_calls=(CALL,)), said("a")],
            [ASKED, said("", tool_calls=(CALL,)), said("a")],
        ),
        ([ASKED, said("a"), said("b"), ASKED], [ASKED, said("a"), said("b"), ASKED]),
    ],
)  # fmt: skip
def test_answers_at_the_end_are_one(turns: list[Message], expected: list[Message]) -> None:
    assert list(join_answers(turns)) == expected


@pytest.mark.parametrize(
    ("turns", "is_one"),
    [
        ([ASKED, said("a")], True),
        ([ASKED], False),
        ([said("a")], True),
        ([said("")], False),
        ([ASKED, said("", thinking="hm")], True),
        ([ASKED, said("a", tool_calls=(CALL,))], False),
        ([], False),
    ],
)  # fmt: skip
def test_what_is_continued(turns: list[Message], is_one: bool) -> None:
    assert is_continued(turns) is is_one


def test_thinking_that_was_begun() -> None:
    assert is_unfinished(" <think>I sh")
    assert not is_unfinished("<think>a</think> b")
    assert not is_unfinished("a <think>")


KNOWS = Traits(context_length=100, takes_continue_final_message=True)


@pytest.mark.parametrize(
    ("traits", "turns", "asks"),
    [
        (KNOWS, [ASKED, said("a")], True),
        (KNOWS, [ASKED], False),
        (KNOWS, [ASKED, said("a", tool_calls=(CALL,))], False),
        (Traits(context_length=100), [ASKED, said("a")], False),
    ],
)  # fmt: skip
def test_an_engine_that_knows_how_is_asked(
    traits: Traits, turns: list[Message], asks: bool
) -> None:
    body = json.loads(chat_call(turns, Sampling(), traits).encode())
    fields = (body.get("continue_final_message"), body.get("add_generation_prompt"))
    assert fields == ((True, False) if asks else (None, None))
    given = {"messages": [{"role": turn.role, "content": turn.content} for turn in turns]}
    if not turns[-1].tool_calls:
        data = adapt_chat(given, traits)[0]
        assert data.get("continue_final_message") == (True if asks else None)


def test_what_the_client_says_of_it_wins() -> None:
    turns = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "a"}]
    body = {"messages": turns, "add_generation_prompt": True}
    assert "continue_final_message" not in adapt_chat(body, KNOWS)[0]


def test_an_image_is_not_lost_by_joining() -> None:
    one, other = said("a", images=("x",)), said("b", images=("y",))
    assert join_answers([ASKED, one, other])[-1] == replace(
        other, content="a\n\nb", images=("x", "y")
    )
