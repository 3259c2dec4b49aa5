"""Limits of a request's context: Ollama's arithmetic for prompts and responses.

Ollama starts its engine again for every other `num_ctx`, so that its engine's context is the
request's. Here an engine may have more than a request asks for (decision 0007): the request is
bounded by these rules instead. Sources: Ollama's `llm/llama_server.go` (limits of answers, the cut
through a prompt), `server/sched.go` (the smallest contexts), `server/prompt.go` (images).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllama.base.errors import ContextOverflow
from vllama.chat.bodies import check_length
from vllama.chat.engine.traits import MAX_KEPT, Traits, remember_for_traits
from vllama.chat.request import Message

OPEN_ENDED = 10
"""Contexts that an answer may fill when its engine shifts its context."""

LEAST = 4
LEAST_WITH_IMAGES = 2048
"""The smallest contexts, in tokens; a smaller `num_ctx` is raised to these."""

IMAGE_TOKENS = 768
"""What an image counts for when old messages are dropped; how many it takes nobody knows before."""

TOKEN_LENGTH = 256
"""Characters that no token exceeds: the longest of GPT-4's, Llama's and Qwen's is 128 spaces."""

SHORT_TEXT = 1_000_000
"""Characters that an engine may always be asked to count, in about a second: much may be cut."""


def check_text(text: str, traits: Traits) -> None:
    """Raise ContextOverflow for a text that no tokens of a whole context can be; count nothing."""
    check_length(len(text))
    most = max(SHORT_TEXT, TOKEN_LENGTH * traits.context_length)
    if len(text) > most:
        raise ContextOverflow(
            f"the prompt exceeds the context length: it has {len(text)} "
            f"characters, and a context of {traits.context_length} tokens at most {most}",
            hint="shorten it, or request a larger num_ctx",
        )


def bound_traits(traits: Traits, num_ctx: int) -> Traits:
    """Return `traits` for a request whose context is `num_ctx` tokens, if the engine has more."""
    num_ctx = max(num_ctx, LEAST_WITH_IMAGES if traits.takes_images else LEAST)
    if num_ctx >= traits.window:
        return traits
    kept = _get_bounded(traits)
    if num_ctx not in kept:
        if len(kept) >= MAX_KEPT:
            kept.clear()
        kept[num_ctx] = replace(traits, num_ctx=num_ctx)
    return kept[num_ctx]


@remember_for_traits
def _get_bounded(traits: Traits) -> dict[int, Traits]:
    """Return where the bounded traits of an engine are kept: much else is kept for each of them."""
    return {}


def compute_answer_limit(
    asked: int | None, traits: Traits, prompt_tokens: int | None = None, *, shift: bool = True
) -> int | None:
    """Return the most tokens of an answer; None if only the end of the engine's context ends it.

    `asked` None: neither the request nor a setting limits it. `shift` False: the answer ends where
    the context is full, which only can be told with `prompt_tokens`.
    """
    limit = OPEN_ENDED * traits.window
    if asked is not None:
        limit = min(limit, asked)
    if prompt_tokens is not None:
        if not shift:
            limit = min(limit, traits.window - prompt_tokens)
        if not traits.shifts_context:
            limit = min(limit, traits.context_length - prompt_tokens)
    return limit if traits.shifts_context or limit < traits.context_length else None


def cut_middle(tokens: Sequence[int], num_ctx: int, num_keep: int) -> list[int]:
    """Return the first `num_keep` tokens of a prompt and as many of its last as leave room.

    What stays leaves half of the context behind the kept ones to the answer. `num_keep` below 0
    keeps all that fit.
    """
    most = num_ctx - 1
    keep = min(num_keep if num_keep >= 0 else len(tokens), most)
    limit = num_ctx - max((num_ctx - keep) // 2, 1)
    return [*tokens[:keep], *tokens[len(tokens) - (limit - keep) :]]


def take_newest(messages: Sequence[Message], start: int) -> tuple[Message, ...]:
    """Return the messages from `start` on, and the system messages that came before."""
    system = (message for message in messages[:start] if message.role in ("system", "developer"))
    return (*system, *messages[start:])


def find_starts(messages: Sequence[Message], role: str | None = None) -> list[int]:
    """Return where a conversation may begin when its oldest messages go; the last one always stays.

    Never with a tool's result, whose call would be gone; with `role` only at messages of that.
    """
    last = len(messages) - 1
    return [
        number
        for number, message in enumerate(messages)
        if number == last or (number and message.role == (role or message.role) != "tool")
    ]
