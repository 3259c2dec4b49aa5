"""What to know of a prompt without its template: which of its messages can be dropped.

Truncation: contract §3.6.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllama.translate.types import Message


def newest(messages: Sequence[Message], start: int) -> tuple[Message, ...]:
    """Return the messages from `start` on, and the system messages that came before."""
    system = (message for message in messages[:start] if message.role in ("system", "developer"))
    return (*system, *messages[start:])


def starts(messages: Sequence[Message], role: str | None = None) -> list[int]:
    """Return where a conversation may begin when its oldest messages go; the last one always stays.

    Never with a tool's result, whose call would be gone; with `role` only at messages of that.
    """
    last = len(messages) - 1
    return [
        number
        for number, message in enumerate(messages)
        if number == last or (number and message.role == (role or message.role) != "tool")
    ]
