"""What tells that two requests begin alike, so that they had better go to one replica.

An engine keeps what it has computed of a prompt's beginning. All turns of a conversation share
everything up to the user's first message; requests of one kind share the first part of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

PREFIX_CHARS = 1024

Prefix = Callable[[], Hashable]


def hash_messages(messages: object) -> Prefix:
    """Return a function that tells how a conversation begins; it costs nothing until called."""

    def prefix() -> Hashable:
        parts = []
        for message in messages if isinstance(messages, Sequence) else ():
            role, content = _fields(message)
            parts.append((role, repr(content)))
            if role == "user":
                break
        return hash(tuple(parts))

    return prefix


def hash_text(*texts: object) -> Prefix:
    """Return a function that tells how a prompt begins."""
    return lambda: hash(tuple(str(text)[:PREFIX_CHARS] for text in texts))


def _fields(message: object) -> tuple[object, object]:
    if isinstance(message, Mapping):
        return message.get("role"), message.get("content")
    return getattr(message, "role", None), getattr(message, "content", message)
