"""Vectors of an engine: asked for in pieces, cut to what it takes, pooled and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from vllama.base import executors
from vllama.base.errors import BadRequest, ContextOverflow, UpstreamError
from vllama.chat.engine.request import make_embed_call
from vllama.chat.engine.traits import Traits
from vllama.chat.request import guess_tokens
from vllama.dialects.errors import clean_engine_error
from vllama.dialects.ollama.embeddings import Input, decode_embeddings
from vllama.net.upstream.pool import Upstream
from vllama.observe.tracing.current import end_stage
from vllama.routes.prompts.prompt import DROPPED_HEADER, DROPPED_TOKENS_HEADER
from vllama.routes.prompts.tokenizer import detokenize, tokenize

if TYPE_CHECKING:
    pass

MUCH = 1 << 20
"""Bytes of an answer beyond which others should not wait for its arithmetic."""
MOST_AROUND = 4
"""Tokens that a model may put around an input: BERT two, SentencePiece a space before."""


@dataclass(slots=True, kw_only=True)
class Made:
    """Vectors, the sum of their inputs' tokens, and how many inputs and tokens were cut off."""

    vectors: list[msgspec.Raw] = field(default_factory=list)
    tokens: int = 0
    cut: int = 0
    cut_tokens: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """Headers that tell of what was cut, as those of a conversation do."""
        if not self.cut:
            return {}
        return {DROPPED_HEADER: str(self.cut), DROPPED_TOKENS_HEADER: str(self.cut_tokens)}


async def embed_all(
    upstream: Upstream,
    traits: Traits,
    inputs: Sequence[Input],
    *,
    count: Callable[[int], None],
    model: str,
    finish: Callable[[Sequence[float]], msgspec.Raw],
    truncate: bool,
    limit: float,
) -> Made:
    """Make one vector an input, as JSON that `finish` writes. Raises ContextOverflow, BadRequest.

    `count` is told the tokens of each; those of one whose client leaves meanwhile are estimated.

    One call an input: engines that give a vector a token would make a huge answer of a batch. Each
    vector is written when it comes: thousands at once would keep everybody waiting.
    """
    made = Made()
    for given in inputs:
        text = given if isinstance(given, str) else await detokenize_input(upstream, traits, given)
        fitted, over = await fit_input(upstream, traits, text, truncate=truncate, limit=limit)
        made.cut += over > 0
        made.cut_tokens += over
        end_stage()
        try:
            answer = await upstream.fetch(make_embed_call(fitted or " ", traits, model=model))
        except asyncio.CancelledError:
            count(guess_tokens(fitted))
            raise
        if answer.status != 200:
            raise clean_engine_error(answer.status, answer.body, answer.headers)
        if len(answer.body) < MUCH:
            found_vectors, tokens = decode_embeddings(answer.body, traits)
        else:
            found_vectors, tokens = await executors.codec.run(
                decode_embeddings, answer.body, traits
            )
        if len(found_vectors) != 1:
            raise UpstreamError(f"the engine made {len(found_vectors)} vectors of one input")
        made.vectors += map(finish, found_vectors)
        made.tokens += tokens
        count(tokens)
    return made


async def fit_input(
    upstream: Upstream, traits: Traits, text: str, *, truncate: bool, limit: float
) -> tuple[str, int]:
    """Cut an input to `limit` tokens, or refuse it; return how many went, too."""
    if len(text.encode()) < limit - MOST_AROUND:  # a token is a byte at least
        return text, 0
    tokens = await tokenize(upstream, traits, text, special=True)
    if tokens is None or len(tokens) <= limit:
        return text, 0
    if not truncate:
        raise ContextOverflow("the input length exceeds the context length")
    around = 1  # what stands at the end is put there again
    if traits.tokenizer is not None and traits.tokenizer.special_field:
        plain = await tokenize(upstream, traits, text) or []
        tokens, around = plain, len(tokens) - len(plain)
    kept = tokens[: max(0, int(limit) - around)]
    while kept:  # a text may have more tokens than it was made of: a space is put before it
        text = await detokenize(upstream, traits, kept)
        over = len(await tokenize(upstream, traits, text, special=True) or []) - int(limit)
        if over <= 0:
            return text, len(tokens) - len(kept)
        kept = kept[:-over]
    raise ContextOverflow("input after truncation exceeds maximum context length")


def check_inputs(inputs: Sequence[Input], model: str, vocab_size: int | None) -> None:
    """Refuse tokens that the model does not have: an engine might die of them."""
    for given in inputs:
        for token in () if isinstance(given, str) else given:
            if token < 0 or (vocab_size is not None and token >= vocab_size):
                raise BadRequest(f"cannot use 'input': '{model}' has no token {token}")


async def detokenize_input(upstream: Upstream, traits: Traits, tokens: list[int]) -> str:
    """Return the text of an input's tokens: engines want text. Raises BadRequest."""
    if traits.tokenizer is None:
        raise BadRequest(
            "cannot use 'input': token ids need an engine with a tokenizer route",
            hint="send the text instead",
        )
    return await detokenize(upstream, traits, tokens)
