"""Anthropic's routes: `POST /v1/messages` and its `count_tokens`.

Keys and versions in the headers are accepted and ignored, as Ollama does. `relay_blocks` serves
every dialect that becomes a chat request in OpenAI's form.

See docs/reference/ollama-api.md#messages.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from vllama.chat.request import Fitting, Sampling
from vllama.dialects.anthropic.read import parse_messages
from vllama.dialects.anthropic.write import MessagesWriter, estimate_tokens, make_too_long_error
from vllama.dialects.openai.values import read_conversation
from vllama.engines.base import Mode
from vllama.errors import ContextOverflow
from vllama.http.request import Request
from vllama.relay.relay import COUNT_HEADER, ESTIMATE
from vllama.routes.chat_pipeline import prepare_turn
from vllama.routes.inference import make_need, with_lease
from vllama.routes.openai.common import complete_chat, find_chat_model, make_seed, relay_blocks
from vllama.routes.tokenizer import count_conversation
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def messages(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/messages`: continue a conversation."""
    identity = _identify(request)
    asked = parse_messages(await request.body())
    entry = await find_chat_model(gateway, asked.model)
    chat = complete_chat(entry, asked.chat, asked.extras)
    make = partial(
        MessagesWriter,
        seed=make_seed(request),
        request_id=identity,
        estimate=estimate_tokens(chat),
        stop=asked.stop,
        hide_thinking=asked.hide_thinking,
    )
    try:
        await relay_blocks(
            gateway,
            request,
            entry,
            chat,
            make,
            extras=asked.extras,
            truncate=False,
            ignored=asked.ignored,
        )
    except ContextOverflow as error:
        raise make_too_long_error(error) from error


async def count_tokens(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/messages/count_tokens`: count the tokens of the rendered prompt.

    An engine without a tokenizer gives an estimate, and a header that says so.
    """
    _identify(request)
    data = await request.body()
    asked = parse_messages(data, count_only=True)
    entry = await find_chat_model(gateway, asked.model)
    chat = complete_chat(entry, asked.chat, asked.extras)
    _, load = entry.options(asked.extras.options)

    async def use(lease: Lease, upstream: Upstream) -> None:
        # also where the engine would count by itself, but only while it answers
        traits = replace(lease.traits, usage_in_stream=False)
        sampling = Sampling()
        try:
            turn = await prepare_turn(
                entry,
                chat,
                gateway.renderer,
                upstream,
                traits,
                defaults=sampling,
                fitting=Fitting(truncate=False),
            )
            tokens = turn.prompt.tokens
            if tokens is None and entry.bundle.upstream is not None:
                given, sent = (msgspec.json.decode(body) for body in (data, turn.call.body))
                tokens = await count_conversation(upstream, traits, given, sent)
            elif tokens is None and not turn.prompt.finished:  # no template: the text is most of it
                texts = (item.content for item in read_conversation(turn.call.body)[0])
                await turn.prompt.take("\n".join(texts))
                tokens = turn.prompt.tokens
        except ContextOverflow as error:
            tokens = error.tokens  # its size is what was asked for
        headers = {COUNT_HEADER: ESTIMATE} if tokens is None else {}
        count = estimate_tokens(chat) if tokens is None else tokens
        body = msgspec.json.encode({"input_tokens": count})
        request.respond(200, body, headers=headers)

    need = make_need(load, Mode.CHAT)
    await with_lease(gateway, request, entry.bundle, need, asked.extras.keep_alive, use)


# -- for every dialect of this kind -----------------------------------------------------------


def _identify(request: Request) -> str:
    """Make every answer carry `request-id`, which the clients show; return it."""
    identity = f"req_{make_seed(request)}"
    request.tell("request-id", identity)
    return identity
