"""The roles of a conversation, arranged as a strict chat template takes them.

Coding agents send several system messages, some of them after the user's, and two messages of one
role in a row. Templates that refuse this are common: Qwen 3.5 wants one system message at the
beginning, Gemma and Mistral want user and assistant in turn, early Gemmas know no system at all.
Ollama joins neighbours for every template (template/template.go `collate`); vllama does so only
where a template has refused the conversation, because others make use of its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from vllama.chat.request import Message

_SYSTEM = ("system", "developer")


def join_messages(turn: Sequence[Message], separator: str = "\n\n") -> Message:
    """Return the messages of a turn as one: all at once, since there may be thousands."""
    last = turn[-1]
    if len(turn) == 1:
        return last
    return replace(
        last,
        parts=tuple(part for message in turn for part in message.parts),
        thinking=next((one.thinking for one in turn if one.thinking), last.thinking),
        images=tuple(image for message in turn for image in message.images),
        tool_calls=tuple(call for message in turn for call in message.tool_calls),
        extra={key: value for message in turn for key, value in message.extra.items()},
    ).with_text(separator.join(one.content for one in turn if one.content))


def fold_roles(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with one system message, at the beginning, and with neighbours joined.

    Results of tools stay apart, and so does what follows an answer with calls.
    """
    system = [replace(message, role="system") for message in messages if message.role in _SYSTEM]
    turns = [system] if system else []
    for message in messages:
        if message.role in _SYSTEM:
            continue
        before = turns[-1][-1] if turns else None
        joins = before is not None and before.role == message.role and message.role != "tool"
        if before is not None and joins and not before.tool_calls:
            turns[-1].append(message)
        else:
            turns.append([message])
    return tuple(map(join_messages, turns))


def move_system_to_user(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with a leading system message as the beginning of the user's first."""
    system, *rest = messages
    if system.role != "system":
        return tuple(messages)
    system = replace(system, role="user")
    if rest and rest[0].role == "user":
        return (join_messages((system, rest[0])), *rest[1:])
    return (system, *rest)


def arrange_roles(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield the conversations to try in place of one that a template has refused, best first."""
    folded = fold_roles(messages)
    if folded != tuple(messages):
        yield folded
    if folded and folded[0].role == "system":
        yield move_system_to_user(folded)
