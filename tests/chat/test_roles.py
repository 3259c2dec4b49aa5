"""Conversations arranged for templates that are strict about roles."""

from collections.abc import Callable, Sequence

import pytest

from tests.hostile.counting import steps
from vllama.chat.conversation import (
    arrange_roles,
    fold_roles,
    join_answers,
    shorten_ids,
    write_tools_as_text,
)
from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.request import Message


def talk(*turns: str) -> list[Message]:
    """Return messages from "role text" each."""
    return [Message(role=role, content=text) for role, _, text in (t.partition(" ") for t in turns)]


def shown(messages) -> list[str]:
    return [f"{message.role} {message.content}" for message in messages]


@pytest.mark.parametrize(
    ("turns", "folded"),
    [
        (["user a", "assistant b", "user c"], ["user a", "assistant b", "user c"]),
        (["system s", "user a"], ["system s", "user a"]),
        # Claude Code
        (["system s", "user a", "system t"], ["system s\n\nt", "user a"]),
        # Codex
        (
            ["developer s", "developer t", "user a", "user b"],
            ["system s\n\nt", "user a\n\nb"],
        ),
        # gptme
        (["system s", "system t", "system u", "user a"], ["system s\n\nt\n\nu", "user a"]),
        (["user a", "system s", "user b"], ["system s", "user a\n\nb"]),
        (["assistant a", "assistant b", "user c"], ["assistant a\n\nb", "user c"]),
        (["user a", "tool b", "tool c"], ["user a", "tool b", "tool c"]),
        (["user ", "user b"], ["user b"]),
    ],
)
def test_folding(turns, folded):
    assert shown(fold_roles(talk(*turns))) == folded
    assert fold_roles(fold_roles(talk(*turns))) == fold_roles(talk(*turns))


def test_calls_and_media_stay():
    call = ToolCall(id="c1", name="weather")
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    before = talk("assistant a")[0]
    called = Message(role="assistant", content="b", tool_calls=(call,))
    after = talk("assistant c")[0]
    (joined, last) = fold_roles([before, called, after])
    assert (joined.content, joined.tool_calls, last.content) == ("a\n\nb", (call,), "c")
    seen = Message(role="user", parts=(picture,), images=("AA",))
    (one,) = fold_roles([*talk("user a"), seen])
    assert (one.content, one.images, one.media) == ("a", ("AA",), (picture,))


@pytest.mark.parametrize(
    ("turns", "tried"),
    [
        (["user a"], []),
        (["system s", "user a"], [["user s\n\na"]]),
        (["user a", "system s"], [["system s", "user a"], ["user s\n\na"]]),
        (["system s"], [["user s"]]),
        (["system s", "assistant a"], [["user s", "assistant a"]]),
    ],
)
def test_what_is_tried_after_a_refusal(turns, tried):
    assert [shown(messages) for messages in arrange_roles(talk(*turns))] == tried


@pytest.mark.parametrize(
    ("arrange", "role"),
    [
        (write_tools_as_text, "tool"), (fold_roles, "user"), (fold_roles, "system"),
        (join_answers, "assistant"),
    ],
)  # fmt: skip
def test_the_texts_of_a_long_turn_are_joined_once(
    arrange: Callable[[Sequence[Message]], Sequence[Message]],
    role: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    with_text = Message.with_text
    monkeypatch.setattr(
        Message, "with_text", lambda self, text: written.append(text) or with_text(self, text)
    )
    (joined,) = arrange([Message(role=role, content=f"{number}") for number in range(500)])
    assert all(f"{number}" in joined.content.split() for number in range(500))
    assert sum(map(len, written)) < 4 * len(joined.content)


def test_a_result_is_looked_for_among_some_calls() -> None:
    call = ToolCall(index=0, id="", name="f", arguments={})
    asked = [Message(role="assistant", tool_calls=(call,) * 3000)]
    found = [Message(role="tool", tool_call_id=f"{number}") for number in range(300)]
    with steps(400_000):
        assert len(shorten_ids([*asked, *found])) == 301
