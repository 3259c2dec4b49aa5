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


def join_messages(before: Message, last: Message) -> Message:
    """Return two messages of one role as one, their texts with an empty line between them."""
    return replace(
        last,
        parts=before.parts + last.parts,
        thinking=before.thinking or last.thinking,
        images=before.images + last.images,
        tool_calls=before.tool_calls + last.tool_calls,
        extra={**before.extra, **last.extra},
    ).with_text("\n\n".join(filter(None, (before.content, last.content))))


def fold_roles(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with one system message, at the beginning, and with neighbours joined.

    Results of tools stay apart, and so does what follows an answer with calls.
    """
    system = [message for message in messages if message.role in _SYSTEM]
    out: list[Message] = []
    for message in system:
        message = replace(message, role="system")
        out[:] = [join_messages(out[0], message) if out else message]
    for message in messages:
        if message.role in _SYSTEM:
            continue
        before = out[-1] if out else None
        joins = before is not None and before.role == message.role and message.role != "tool"
        if before is not None and joins and not before.tool_calls:
            out[-1] = join_messages(before, message)
        else:
            out.append(message)
    return tuple(out)


def move_system_to_user(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with a leading system message as the beginning of the user's first."""
    system, *rest = messages
    if system.role != "system":
        return tuple(messages)
    system = replace(system, role="user")
    if rest and rest[0].role == "user":
        return (join_messages(system, rest[0]), *rest[1:])
    return (system, *rest)


def arrange_roles(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield the conversations to try in place of one that a template has refused, best first."""
    folded = fold_roles(messages)
    if folded != tuple(messages):
        yield folded
    if folded and folded[0].role == "system":
        yield move_system_to_user(folded)
