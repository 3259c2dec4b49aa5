"""Vectors: `POST /api/embed`, `/api/embeddings` (contract §1.4), and those of `/v1/embeddings`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllama.engines.base import Mode
from vllama.errors import BadRequest, ContextOverflow, ModelNotFound
from vllama.gateway.catalog import Entry
from vllama.gateway.http import Request, now_ns
from vllama.gateway.inference import (
    detokenize,
    leased,
    tokenize,
    unless_gone,
)
from vllama.gateway.ollama_common import (
    found,
    need_of,
)
from vllama.gateway.upstream import Upstream
from vllama.scheduler.instance import Lease
from vllama.translate.faults import clean_engine_error
from vllama.translate.ollama_in import (
    parse_embed,
    parse_legacy_embed,
)
from vllama.translate.ollama_out import (
    embed_reply,
    legacy_embed_reply,
)
from vllama.translate.openai_in import embed_call
from vllama.translate.openai_out import (
    decode_embeddings,
    normalize,
    truncate_dimensions,
)
from vllama.translate.options import resolve_options
from vllama.translate.traits import Traits
from vllama.translate.types import (
    EmbedRequest,
)

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway


async def embed(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/embed`."""
    asked = parse_embed(await request.body())
    if not asked.model:
        raise ModelNotFound("", message="model '' not found")
    entry = await found(gateway, asked.model, 'model "{}" not found, try pulling it first')
    await embedded(gateway, request, entry, asked)


async def legacy_embed(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/embeddings`, the older route for one prompt."""
    asked = parse_legacy_embed(await request.body())
    if not asked.model:
        raise BadRequest("model is required")
    entry = await found(gateway, asked.model, 'model "{}" not found, try pulling it first')
    await embedded(gateway, request, entry, asked)


async def embedded(gateway: Gateway, request: Request, entry: Entry, asked: EmbedRequest) -> None:
    """Load the model for embeddings and answer."""
    _, load = resolve_options(entry.bundle.parameters, asked.options)
    need = need_of(load, Mode.EMBED)

    async def use(lease: Lease, upstream: Upstream) -> None:
        loaded_ns = now_ns()
        work = embed_all(
            upstream,
            lease.traits,
            asked.inputs,
            model=asked.model,
            truncate=asked.truncate,
            limit=min(load.num_ctx or math.inf, lease.traits.context_length),
        )
        vectors, tokens = await unless_gone(request, work)
        if asked.dimensions:
            vectors = [truncate_dimensions(vector, asked.dimensions) for vector in vectors]
        if asked.legacy:
            await request.respond(200, legacy_embed_reply(vectors[0] if vectors else []))
            return
        body = embed_reply(
            asked.model,
            vectors,
            total_ns=now_ns() - request.started_ns,
            load_ns=loaded_ns - request.started_ns,
            prompt_tokens=tokens,
        )
        await request.respond(200, body)

    await leased(gateway, request, entry.bundle, need, asked.keep_alive, use)


async def embed_all(
    upstream: Upstream,
    traits: Traits,
    inputs: Sequence[str],
    *,
    model: str,
    truncate: bool,
    limit: float,
) -> tuple[list[list[float]], int]:
    """Return one normalised vector an input, and the sum of their tokens.

    One call an input: engines that give a vector a token would make a huge answer of a batch.
    """
    vectors: list[list[float]] = []
    total = 0
    for text in inputs:
        fitted = await fit_input(upstream, traits, text, truncate=truncate, limit=limit)
        answer = await upstream.fetch(embed_call(fitted or " ", traits, model=model))
        if answer.status != 200:
            raise clean_engine_error(answer.status, answer.body)
        found_vectors, tokens = decode_embeddings(answer.body, traits)
        vectors += [normalize(vector) for vector in found_vectors]
        total += tokens
    return vectors, total


async def fit_input(
    upstream: Upstream, traits: Traits, text: str, *, truncate: bool, limit: float
) -> str:
    """Cut an input to `limit` tokens, or refuse it (contract §1.4)."""
    if len(text.encode()) < limit:  # a token is a byte at least
        return text
    tokens = await tokenize(upstream, traits, text)
    if tokens is None or len(tokens) <= limit:
        return text
    if not truncate:
        raise ContextOverflow("the input length exceeds the context length")
    kept = tokens[: max(0, int(limit) - 1)]
    if not kept:
        raise ContextOverflow("input after truncation exceeds maximum context length")
    return await detokenize(upstream, traits, kept)
