"""Vectors: `POST /api/embed`, `/api/embeddings` and `/v1/embeddings`.

An engine is asked for one input after the other, each cut to what it takes.

See docs/reference/ollama-api.md#embed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from vllama.base import executors
from vllama.base.clock import now_ns
from vllama.base.errors import BadRequest, ContextOverflow, ModelNotFound, UpstreamError
from vllama.chat.engine.context import LEAST
from vllama.chat.engine.refusals import clean_engine_error
from vllama.chat.engine.request import make_embed_call
from vllama.chat.engine.traits import Traits
from vllama.chat.request import guess_tokens
from vllama.dialects.ollama.answer_types import EmbedAnswer, LegacyEmbedAnswer
from vllama.dialects.ollama.embeddings import (
    EmbedRequest,
    Input,
    decode_embeddings,
    finish_vector,
    parse_embeddings,
    read_embed,
    read_legacy_embed,
    write_base64,
    write_float32s,
    write_float64s,
)
from vllama.dialects.ollama.read import decode_request
from vllama.dialects.ollama.request_types import EmbedBody, LegacyEmbedBody
from vllama.dialects.openai.answer_types import Embedding, Embeddings, Usage
from vllama.dialects.openai.extras import take_extras
from vllama.dialects.openai.read import parse_openai
from vllama.dialects.openai.request_types import EmbeddingBody
from vllama.engines.base import Mode
from vllama.models.lookup import Entry
from vllama.models.names.ref import ModelRef
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import Request
from vllama.net.upstream.pool import Upstream
from vllama.observe.tracing.setup import end_stage
from vllama.plan.types import Need
from vllama.routes.chain import find_model
from vllama.routes.inference.demand import size_inputs
from vllama.routes.inference.lease import with_lease
from vllama.routes.inference.relay import count_inputs, name_ignored
from vllama.routes.openai.common import find_text_model, read_truncate
from vllama.routes.prompts.prompt import DROPPED_HEADER, DROPPED_TOKENS_HEADER
from vllama.routes.prompts.tokenizer import detokenize, find_unknown, tokenize
from vllama.routes.route import Dialect, RouteKind, Task, ollama_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

NOT_FOUND = 'model "{}" not found, try pulling it first'
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


async def embed(gateway: Gateway, request: Request) -> None:
    """Embed texts."""
    given = decode_request(await request.body(), EmbedBody)
    if not given.model:
        raise ModelNotFound("", message="model '' not found")
    ModelRef.parse(given.model)  # what is wrong with it is said before what is wrong with the input
    asked = read_embed(given)
    entry = await find_model(gateway.catalog, asked.model, NOT_FOUND)

    def write(made: Made, loaded_ns: int) -> EmbedAnswer:
        times_ns = (now_ns() - request.started_ns, loaded_ns - request.started_ns)
        total_ns, load_ns = times_ns if asked.inputs else (0, 0)
        return EmbedAnswer(asked.model, made.vectors, total_ns, load_ns, made.tokens)

    await answer_vectors(gateway, request, entry, asked, write, exact=True)


async def legacy_embed(gateway: Gateway, request: Request) -> None:
    """Embed a text (legacy route)."""
    asked = read_legacy_embed(decode_request(await request.body(), LegacyEmbedBody))
    if not asked.model:
        raise BadRequest("model is required")
    entry = await find_model(gateway.catalog, asked.model, NOT_FOUND)

    def write(made: Made, loaded_ns: int) -> LegacyEmbedAnswer:
        return LegacyEmbedAnswer(made.vectors[0] if made.vectors else Raw(b"[]"))

    try:
        await answer_vectors(gateway, request, entry, asked, write)
    except ContextOverflow as error:
        error.status = 500  # Ollama's status there for whatever goes wrong
        raise


async def embeddings(gateway: Gateway, request: Request) -> None:
    """Embed texts or tokens.

    The embeddings are normalized, and base64-encoded if requested.
    """
    body, extras = take_extras(parse_openai(await request.body(), EmbeddingBody))
    asked = parse_embeddings(body)
    known = {*EmbeddingBody.__struct_encode_fields__, "user"}
    name_ignored(request, [name for name in body if name not in known])
    entry = await find_text_model(gateway, asked.model, NOT_FOUND)
    tokens = (token for given in asked.inputs if isinstance(given, list) for token in given)
    if (token := find_unknown(tokens, entry.info.vocab_size)) is not None:
        raise BadRequest(f"cannot use 'input': '{asked.model}' has no token {token}")
    asked = msgspec.structs.replace(
        asked,
        options=extras.options,
        keep_alive=extras.keep_alive,
        truncate=read_truncate(request, extras, default=True),
    )

    def write(made: Made, loaded_ns: int) -> Embeddings:
        rows = [Embedding("embedding", one, number) for number, one in enumerate(made.vectors)]
        return Embeddings("list", rows, asked.model, Usage(made.tokens, made.tokens))

    await answer_vectors(gateway, request, entry, asked, write)


async def answer_vectors(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    asked: EmbedRequest,
    write: Callable[[Made, int], Struct],
    *,
    exact: bool = False,
) -> None:
    """Load the model for embeddings, and answer what `write` makes of the vectors.

    `write` is told when the model was loaded, too. `exact`: Ollama's newer route counts with the
    context that was asked for, the others with the engine's.
    """
    _, load = entry.options(asked.options)
    need, num_ctx = Need(mode=Mode.EMBED, load=load), load.num_ctx
    if num_ctx is not None and not (exact and num_ctx > 0):
        num_ctx = max(LEAST, num_ctx)
    form = write_float64s if asked.legacy else write_float32s
    if asked.encoding == "base64":
        form = write_base64

    async def use(lease: Lease, upstream: Upstream) -> None:
        loaded_ns = now_ns()
        work = embed_all(
            upstream,
            lease.traits,
            asked.inputs,
            count=partial(count_inputs, gateway, request, entry.bundle),
            model=asked.model,
            finish=partial(finish_vector, dimensions=asked.dimensions, form=form),
            truncate=asked.truncate,
            patience_s=lease.patience_s,
            limit=min(
                num_ctx or math.inf,
                lease.traits.context_length,
                entry.info.context_length or math.inf,  # the engine's may be rounded up
            ),
        )
        made = await unless_gone(request, work)
        answer = msgspec.json.encode(write(made, loaded_ns))
        request.respond(200, answer, headers=made.headers)

    size = size_inputs(asked.inputs)
    await with_lease(gateway, request, entry.bundle, need, asked.keep_alive, use, size=size)


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
    patience_s: float | None = None,
) -> Made:
    """Make one vector an input, as JSON that `finish` writes. Raises ContextOverflow, BadRequest.

    `count` is told the tokens of each; those of one whose client leaves meanwhile are estimated.
    Each may take `patience_s`.

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
            answer = await upstream.fetch(
                make_embed_call(fitted or " ", traits, model=model), limit_s=patience_s
            )
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
            raise UpstreamError(f"expected one embedding, but got {len(found_vectors)}")
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


async def detokenize_input(upstream: Upstream, traits: Traits, tokens: list[int]) -> str:
    """Return the text of an input's tokens: engines want text. Raises BadRequest."""
    if traits.tokenizer is None:
        raise BadRequest(
            "cannot use 'input': token IDs need an engine with a tokenizer route",
            hint="send the text instead",
        )
    return await detokenize(upstream, traits, tokens)


_embeds = partial(ollama_route, kind=RouteKind.MODEL, task=Task.EMBEDDINGS)
ROUTES = (
    _embeds("POST /api/embed", embed, body=EmbedBody, answer=EmbedAnswer),
    _embeds(
        "POST /api/embeddings",
        legacy_embed,
        body=LegacyEmbedBody,
        answer=LegacyEmbedAnswer,
    ),
    _embeds(
        "POST /v1/embeddings",
        embeddings,
        dialect=Dialect.OPENAI,
        body=EmbeddingBody,
        answer=Embeddings,
    ),
)
