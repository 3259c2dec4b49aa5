"""The OpenAI routes, passed through to the engine's own.

What a client sends is only changed where the engine could not take it (`Traits`); the engine is
always asked to stream, so that a client who leaves stops the generation.

See docs/reference/ollama-api.md#openai-chat-completions, #openai-completions.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from vllama.dialects.ollama.embeddings import (
    finish_vector,
    parse_embeddings,
    write_base64,
    write_float32s,
)
from vllama.dialects.openai.answer_types import ChatChunk, ChatCompletion, Embeddings
from vllama.dialects.openai.choices import Part, reseed
from vllama.dialects.openai.extras import take_extras
from vllama.dialects.openai.read import parse_openai, read_chat
from vllama.dialects.openai.request_types import CHAT, EMBEDDING
from vllama.dialects.openai.whole import WholeWriter, write_embeddings
from vllama.dialects.openai.write import StreamWriter
from vllama.engines.base import Mode
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import Request
from vllama.net.upstream.pool import Upstream
from vllama.routes.inference.affinity import hash_messages
from vllama.routes.inference.lease import count_inputs, make_need, with_lease
from vllama.routes.inference.reservation import size_answers, size_inputs
from vllama.routes.ollama.embed import NOT_FOUND
from vllama.routes.openai import bodies
from vllama.routes.openai.common import (
    find_text_model,
    find_v1_model,
    make_options,
    name_ignored,
    read_truncate,
)
from vllama.routes.openai.multi_choice import Choice, relay_choices
from vllama.routes.operation import Framing, Stream
from vllama.routes.prompts.embedding import check_inputs, embed_all
from vllama.routes.prompts.prepare import check_request, prepare
from vllama.routes.prompts.prompt import make_dropped_header
from vllama.routes.route import RouteKind, Task, openai_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def chat(gateway: Gateway, request: Request) -> None:
    """Continue a conversation.

    Fields that only the engine knows are passed on to it.
    """
    body, extras = take_extras(parse_openai(await request.body(), CHAT))
    asked = read_chat(body, extras, truncate=read_truncate(request, extras, default=True))
    entry = await find_v1_model(gateway, asked.model)
    checked = check_request(entry, asked, "chat")
    options = make_options(asked)
    need = make_need(checked.load, Mode.CHAT, logprobs=asked.logprobs)

    async def use(lease: Lease, upstream: Upstream) -> None:
        traits = lease.traits
        # without sampling they are alike, and engines refuse to make several of them
        together = traits.takes_n and checked.sampling.temperature != 0
        turn = await prepare(
            checked, traits, gateway.renderer, upstream, n=asked.n if together else 1
        )
        call = turn.make_call()
        choices = [
            Choice(
                call=reseed(call, traits, number),
                reply=turn.make_reply(
                    StreamWriter(options, part) if asked.stream else WholeWriter(options)
                ),
                new_prompt=number == 0,
            )
            for number, part in enumerate(Part.several([1 if together else asked.n]))
        ]
        name_ignored(request, turn.chat.ignored)
        headers = make_dropped_header(turn.prompt)
        whole = not asked.stream
        await relay_choices(
            gateway, request, entry.bundle, upstream, choices, whole=whole, headers=headers
        )

    prefix, size = hash_messages(asked.messages), size_answers([checked], asked.n)
    await with_lease(gateway, request, entry.bundle, need, asked.keep_alive, use, prefix, size=size)


async def embeddings(gateway: Gateway, request: Request) -> None:
    """Make embeddings of texts or tokens.

    They are normalised, and in base64 if requested.
    """
    body, extras = take_extras(parse_openai(await request.body(), EMBEDDING))
    asked = parse_embeddings(body)
    name_ignored(request, [each for each in body if each not in {*EMBEDDING.fields, "user"}])
    entry = await find_text_model(gateway, asked.model, NOT_FOUND)
    name = str(asked.model)
    check_inputs(asked.inputs, name, entry.info.vocab_size)
    _, load = entry.options(extras.options)
    need = make_need(load, Mode.EMBED)
    truncate = read_truncate(request, extras, default=True)

    async def use(lease: Lease, upstream: Upstream) -> None:
        work = embed_all(
            upstream,
            lease.traits,
            asked.inputs,
            count=partial(count_inputs, gateway, request, entry.bundle),
            model=name,
            finish=partial(
                finish_vector,
                dimensions=asked.dimensions,
                form=write_base64 if asked.encoding == "base64" else write_float32s,
            ),
            truncate=truncate,
            limit=min(
                need.context_length or math.inf,
                lease.traits.context_length,
                entry.info.context_length or math.inf,
            ),
        )
        made = await unless_gone(request, work)
        reply = write_embeddings(name, made.vectors, made.tokens)
        request.respond(200, reply, headers=made.headers)

    size = size_inputs(asked.inputs)
    await with_lease(gateway, request, entry.bundle, need, extras.keep_alive, use, size=size)


_answers = partial(openai_route, kind=RouteKind.MODEL)
ROUTES = (
    _answers(
        "POST /v1/chat/completions",
        chat,
        task=Task.CHAT,
        body=bodies.CHAT,
        answer=ChatCompletion,
        stream=Stream(Framing.EVENTS, ChatChunk),
    ),
    _answers(
        "POST /v1/embeddings",
        embeddings,
        task=Task.EMBEDDINGS,
        body=bodies.EMBEDDING,
        answer=Embeddings,
    ),
)
