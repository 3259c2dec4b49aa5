"""Vectors: `POST /api/embed`, `/api/embeddings`, and those of `/v1/embeddings`.

See docs/reference/ollama-api.md#embed.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from vllama.base.clock import now_ns
from vllama.base.errors import BadRequest, ContextOverflow, ModelNotFound
from vllama.chat.request import (
    EmbedRequest,
)
from vllama.dialects.go_structs import decode_request
from vllama.dialects.ollama.answer_types import EmbedAnswer, LegacyEmbedAnswer
from vllama.dialects.ollama.embeddings import (
    finish_vector,
    read_embed,
    read_legacy_embed,
    write_float32s,
    write_float64s,
)
from vllama.dialects.ollama.objects import (
    write_embed,
    write_legacy_embed,
)
from vllama.dialects.ollama.request_types import EMBED, LEGACY_EMBED
from vllama.engines.base import Mode
from vllama.models.names.ref import ModelRef
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import Request
from vllama.net.upstream.pool import Upstream
from vllama.routes.catalog import Entry, find_model
from vllama.routes.inference.lease import count_inputs, make_need, with_lease
from vllama.routes.inference.reservation import size_inputs
from vllama.routes.ollama import bodies
from vllama.routes.prompts.embedding import embed_all
from vllama.routes.route import RouteKind, Task, ollama_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


NOT_FOUND = 'model "{}" not found, try pulling it first'


async def embed(gateway: Gateway, request: Request) -> None:
    """Make embeddings of texts."""
    given = decode_request(await request.body(), EMBED)
    if not given.model:
        raise ModelNotFound("", message="model '' not found")
    ModelRef.parse(given.model)  # what is wrong with it is said before what is wrong with the input
    asked = read_embed(given)
    entry = await find_model(gateway.catalog, asked.model, NOT_FOUND)
    await answer_embed(gateway, request, entry, asked)


async def legacy_embed(gateway: Gateway, request: Request) -> None:
    """Make the embedding of a text (the older route)."""
    asked = read_legacy_embed(decode_request(await request.body(), LEGACY_EMBED))
    if not asked.model:
        raise BadRequest("model is required")
    entry = await find_model(gateway.catalog, asked.model, NOT_FOUND)
    await answer_embed(gateway, request, entry, asked)


async def answer_embed(
    gateway: Gateway, request: Request, entry: Entry, asked: EmbedRequest
) -> None:
    """Load the model for embeddings and answer."""
    _, load = entry.options(asked.options)
    need = make_need(load, Mode.EMBED)
    # Ollama's newer route counts with what was asked for, the older one with the engine's context
    exact = not asked.legacy and (load.num_ctx or 0) > 0
    num_ctx = load.num_ctx if exact else need.context_length

    async def use(lease: Lease, upstream: Upstream) -> None:
        loaded_ns = now_ns()
        work = embed_all(
            upstream,
            lease.traits,
            asked.inputs,
            count=partial(count_inputs, gateway, request, entry.bundle),
            model=asked.model,
            finish=partial(
                finish_vector,
                dimensions=asked.dimensions,
                form=write_float64s if asked.legacy else write_float32s,
            ),
            truncate=asked.truncate,
            limit=min(
                math.inf if num_ctx is None else num_ctx,
                lease.traits.context_length,
                entry.info.context_length or math.inf,  # the engine's may be rounded up
            ),
        )
        try:
            made = await unless_gone(request, work)
        except ContextOverflow as error:
            if asked.legacy:  # Ollama's status there for whatever goes wrong
                error.status = 500
            raise
        if asked.legacy:
            request.respond(200, write_legacy_embed(made.vectors), headers=made.headers)
            return
        body = write_embed(
            asked.model,
            made.vectors,
            total_ns=now_ns() - request.started_ns if asked.inputs else 0,
            load_ns=loaded_ns - request.started_ns if asked.inputs else 0,
            prompt_tokens=made.tokens,
        )
        request.respond(200, body, headers=made.headers)

    size = size_inputs(asked.inputs)
    await with_lease(gateway, request, entry.bundle, need, asked.keep_alive, use, size=size)


_embeds = partial(ollama_route, kind=RouteKind.MODEL, task=Task.EMBEDDINGS)
ROUTES = (
    _embeds("POST /api/embed", embed, body=bodies.EMBED, answer=EmbedAnswer),
    _embeds(
        "POST /api/embeddings", legacy_embed, body=bodies.LEGACY_EMBED, answer=LegacyEmbedAnswer
    ),
)
