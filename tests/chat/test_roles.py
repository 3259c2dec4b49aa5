"""Conversations arranged for templates that are strict about roles."""

import pytest

from vllama.chat.request import Message
from vllama.chat.roles import arrange_roles, fold_roles
from vllama.parsers.call_values import ToolCall


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
