"""What is known of a request before an engine is: the most tokens it can take, and how it begins.

The tokens are reserved of what its key has left. No token is less than a byte, so the bytes of a
prompt are the most that it can have; nobody has counted it yet. What cannot be bounded is
`UNBOUNDED`, for which such a request runs alone.

Requests that begin alike had better go to one replica: an engine keeps what it has computed of a
prompt's beginning. All turns of a conversation share everything up to the user's first message.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from vllama.chat.engine.context import IMAGE_TOKENS, compute_answer_limit
from vllama.chat.request import ChatRequest, count_bytes

if TYPE_CHECKING:
    from vllama.chat.engine.traits import Traits
    from vllama.routes.prompts.prepare import CheckedRequest


UNBOUNDED = 1 << 62
AROUND, BEFORE = 16, 256
"""Tokens that a template may put around a message, and before the first: a prompt of its own."""

Size = Callable[["Traits | None"], int]


def count_nothing(traits: Traits | None) -> int:
    """Return 0: nothing is generated, and what is read does not count."""
    return 0


def size_context(traits: Traits | None) -> int:
    """Return all that a model can take at once, for what has no size here."""
    return UNBOUNDED if traits is None else traits.window


def size_inputs(inputs: Sequence[str | list[int]]) -> Size:
    """Return the size of inputs for which no text is generated: texts, or tokens."""
    return lambda traits: sum(
        AROUND + len(one if isinstance(one, list) else one.encode()) for one in inputs
    )


def size_answers(asked: Sequence[CheckedRequest], n: int = 1) -> Size:
    """Return the size of prompts with `n` answers each."""
    prompts: list[tuple[int, int | None, bool]] = []

    def size(traits: Traits | None) -> int:
        if not prompts:  # once, and only for keys with such a limit
            prompts.extend(
                (size_prompt(one.asked), one.sampling.max_tokens, one.asked.shift) for one in asked
            )
        return sum(_size_answer(*prompt, n, traits) for prompt in prompts)

    return size


def size_prompt(asked: ChatRequest) -> int:
    """Return the most tokens that a prompt can have; nobody knows how many an image takes."""
    media = sum(message.media_count for message in asked.messages)
    return count_bytes(asked) + BEFORE + AROUND * len(asked.messages) + IMAGE_TOKENS * media


def _size_answer(prompt: int, most: int | None, shift: bool, n: int, traits: Traits | None) -> int:
    if traits is None:
        return UNBOUNDED if most is None else prompt + n * most
    prompt = min(prompt, traits.window)
    limit = compute_answer_limit(most, traits)
    whole = prompt + n * (traits.window if limit is None else limit)
    return whole if shift and traits.shifts_context else min(whole, n * traits.window)


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
