"""The OpenAI routes, passed through to the engine's own.

What a client sends is only changed where the engine could not take it (`Traits`); the engine is
always asked to stream, so that a client who leaves stops the generation.

See docs/reference/ollama-api.md#openai-chat-completions, #openai-completions.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from vllama.chat.engine.fields import effort_of, parse_effort
from vllama.dialects.ollama.embeddings import (
    base64s,
    embeddings_reply,
    finished,
    float32s,
    parse_embeddings,
)
from vllama.dialects.openai.choices import Part, parse_n, reseeded
from vllama.dialects.openai.extras import take_extras, with_effort
from vllama.dialects.openai.read import parse_openai
from vllama.dialects.openai.whole import WholeWriter
from vllama.dialects.openai.write import StreamWriter
from vllama.engines.base import Mode
from vllama.errors import CapabilityMissing
from vllama.http.request import Request
from vllama.models.types import Bundle, Capability
from vllama.routes.affinity import of_messages
from vllama.routes.chat_pipeline import turn_of, with_own
from vllama.routes.embedding import check_inputs, embed_all
from vllama.routes.inference import leased, need_of, unless_gone
from vllama.routes.openai.common import fitting_of, may_truncate, model_of
from vllama.routes.openai.multi_choice import Choice, relay_choices
from vllama.routes.prompt import dropped_header
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


def row(bundle: Bundle) -> dict[str, object]:
    """Return a model as OpenAI lists it."""
    return {
        "id": bundle.name,
        "object": "model",
        "created": int(bundle.modified_s),
        "owned_by": owner_of(bundle.name),
    }


def owner_of(name: str) -> str:
    """Return the namespace of a name: the part before the last one, `library` if there is none."""
    parts = name.split("/")
    return parts[-2] if len(parts) > 1 else "library"


async def models(gateway: Gateway, request: Request) -> None:
    """Serve `GET /v1/models`: list local models."""
    rows = [row(bundle) for bundle, _ in await gateway.catalog.all()]
    request.json(200, {"object": "list", "data": rows})


async def model(gateway: Gateway, request: Request) -> None:
    """Serve `GET /v1/models/{id}`: describe one model; an id may contain slashes."""
    name = unquote(request.path.removeprefix("/v1/models/"))
    entry = await model_of(gateway, name)
    request.json(200, row(entry.bundle) | {"id": name})


async def chat(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/chat/completions`: continue a conversation."""
    body, extras = take_extras(parse_openai(await request.body()))
    entry = await model_of(gateway, body.get("model"))
    model = str(body["model"])
    if Capability.COMPLETION not in entry.info.capabilities:
        raise CapabilityMissing(f'"{model}" does not support chat')
    thinks = Capability.THINKING in entry.info.capabilities
    if not thinks and (extras.think or parse_effort(effort_of(body))):
        raise CapabilityMissing(f'"{model}" does not support thinking')
    n = parse_n(body.get("n"))
    body = with_own(with_effort(body, extras.think), entry.bundle)
    defaults, load = entry.options(extras.options)
    need = need_of(load, Mode.CHAT, logprobs=bool(body.get("logprobs")))
    fitting = fitting_of(request, extras, defaults)

    async def use(lease: Lease, upstream: Upstream) -> None:
        traits = lease.traits
        # without sampling they are alike, and engines refuse to make several of them
        together = traits.takes_n and body.get("temperature") != 0
        given = body | {"n": n if together and n > 1 else None}
        turn = await turn_of(
            entry, given, gateway.renderer, upstream, traits, defaults=defaults, fitting=fitting
        )
        options = turn.options
        choices = [
            Choice(
                call=reseeded(turn.call, traits, number),
                reply=turn.reply(
                    StreamWriter(options, part) if options.stream else WholeWriter(options)
                ),
                new_prompt=number == 0,
            )
            for number, part in enumerate(Part.several([1 if together else n]))
        ]
        headers = dropped_header(turn.prompt)
        await relay_choices(
            gateway,
            request,
            entry.bundle,
            upstream,
            choices,
            whole=not options.stream,
            headers=headers,
        )

    prefix = of_messages(body.get("messages"))
    await leased(gateway, request, entry.bundle, need, extras.keep_alive, use, prefix)


async def embeddings(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/embeddings`: make embeddings, normalised, in base64 if requested."""
    body, extras = take_extras(parse_openai(await request.body()))
    asked = parse_embeddings(body)
    entry = await model_of(gateway, asked.model)
    name = str(asked.model)
    check_inputs(asked.inputs, name, entry.info.vocab_size)
    _, load = entry.options(extras.options)
    truncate = may_truncate(request, extras, default=True)

    async def use(lease: Lease, upstream: Upstream) -> None:
        work = embed_all(
            upstream,
            lease.traits,
            asked.inputs,
            model=name,
            finish=partial(
                finished,
                dimensions=asked.dimensions,
                form=base64s if asked.encoding == "base64" else float32s,
            ),
            truncate=truncate,
            limit=min(
                load.num_ctx or math.inf,
                lease.traits.context_length,
                entry.info.context_length or math.inf,
            ),
        )
        made = await unless_gone(request, work)
        reply = embeddings_reply(name, made.vectors, made.tokens)
        request.respond(200, reply, headers=made.headers)

    need = need_of(load, Mode.EMBED)
    await leased(gateway, request, entry.bundle, need, extras.keep_alive, use)
