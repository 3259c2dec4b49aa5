"""Anthropic's routes: `POST /v1/messages` and its `count_tokens`.

Keys and versions in the headers are accepted and ignored, as Ollama does. `relay_blocks` serves
every dialect that becomes a chat request in OpenAI's form.

See docs/reference/ollama-api.md#messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from vllama.chat.filters import StopFilter
from vllama.chat.reply import ReplyOptions
from vllama.chat.request import Fitting, Sampling
from vllama.dialects.anthropic.read import parse_messages
from vllama.dialects.anthropic.write import MessagesWriter, estimate_tokens, too_long
from vllama.dialects.blocks import BlockWriter
from vllama.dialects.openai.extras import Extras
from vllama.dialects.openai.values import conversation
from vllama.engines.base import Mode
from vllama.errors import CapabilityMissing, ContextOverflow
from vllama.http.request import Request
from vllama.models.types import Capability
from vllama.relay.relay import COUNT_HEADER, ESTIMATE, Relay
from vllama.routes.affinity import of_messages
from vllama.routes.catalog import Entry
from vllama.routes.chat_pipeline import turn_of, with_own
from vllama.routes.inference import leased, relayed
from vllama.routes.ollama.common import need_of
from vllama.routes.openai.chat import fitting_of, ignored_header, model_of
from vllama.routes.prompt import dropped_header
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.app import Gateway


async def messages(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/messages`: continue a conversation."""
    identity = _identify(request)
    asked = parse_messages(await request.body())
    entry = await chat_model(gateway, asked.model)
    chat = prepared(entry, asked.chat, asked.extras)
    make = partial(
        MessagesWriter,
        seed=seed_of(request),
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
        raise too_long(error) from error


async def count_tokens(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/messages/count_tokens`: count the tokens of the rendered prompt.

    An engine without a tokenizer gives an estimate, and a header that says so.
    """
    _identify(request)
    asked = parse_messages(await request.body(), count_only=True)
    entry = await chat_model(gateway, asked.model)
    chat = prepared(entry, asked.chat, asked.extras)
    _, load = entry.options(asked.extras.options)

    async def use(lease: Lease, upstream: Upstream) -> None:
        # also where the engine would count by itself, but only while it answers
        traits = replace(lease.traits, usage_in_stream=False)
        sampling = Sampling()
        try:
            turn = await turn_of(
                entry,
                chat,
                gateway.renderer,
                upstream,
                traits,
                defaults=sampling,
                fitting=Fitting(truncate=False),
            )
            tokens = turn.prompt.tokens
            if tokens is None and not turn.prompt.finished:  # no template: the text is most of it
                texts = (item.content for item in conversation(turn.call.body)[0])
                await turn.prompt.take("\n".join(texts))
                tokens = turn.prompt.tokens
        except ContextOverflow as error:
            tokens = error.tokens  # its size is what was asked for
        headers = {COUNT_HEADER: ESTIMATE} if tokens is None else {}
        count = estimate_tokens(chat) if tokens is None else tokens
        body = msgspec.json.encode({"input_tokens": count})
        request.respond(200, body, headers=headers)

    need = need_of(load, Mode.CHAT)
    await leased(gateway, request, entry.bundle, need, asked.extras.keep_alive, use)


# -- for every dialect of this kind -----------------------------------------------------------


async def chat_model(gateway: Gateway, name: str) -> Entry:
    """Return the model, which must be one that chats. Raises ModelNotFound, CapabilityMissing."""
    entry = await model_of(gateway, name)
    if Capability.COMPLETION not in entry.info.capabilities:
        raise CapabilityMissing(f'"{name}" does not support chat')
    return entry


def prepared(entry: Entry, chat: dict[str, Any], extras: Extras) -> dict[str, Any]:
    """Complete a chat request with what belongs to the model: its own turns, its sampling.

    What the model cannot do about thinking is left out in silence.
    """
    defaults, _ = entry.options(extras.options)
    out = {"temperature": defaults.temperature, "top_p": defaults.top_p, **chat}
    out = with_own(out, entry.bundle)
    if Capability.THINKING not in entry.info.capabilities:
        out.pop("reasoning_effort", None)
    return out


async def relay_blocks(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    chat: dict[str, Any],
    make: Callable[[ReplyOptions], BlockWriter],
    *,
    extras: Extras,
    truncate: bool = False,
    ignored: Sequence[str] = (),
) -> None:
    """Serve a chat request in OpenAI's form with the writer that `make` builds.

    `truncate`: what is too long may be cut, unless the request says otherwise.
    """
    defaults, load = entry.options(extras.options)
    fitting = fitting_of(request, extras, defaults, truncate=truncate)

    async def use(lease: Lease, upstream: Upstream) -> None:
        traits = lease.traits
        body, sampling, stops = chat, defaults, None
        if (stop := chat.get("stop")) and not traits.names_stop:  # it must be known which it was
            body = {name: value for name, value in chat.items() if name != "stop"}
            sampling = msgspec.structs.replace(defaults, stop=())
            stops = StopFilter(stop, cuts=True)
        turn = await turn_of(
            entry, body, gateway.renderer, upstream, traits, defaults=sampling, fitting=fitting
        )
        headers = ignored_header(ignored) | dropped_header(turn.prompt)
        reply = turn.reply(make(turn.options), stops=stops)
        relay = Relay(request, reply, whole=not turn.options.stream, headers=headers)
        await relayed(gateway, request, entry.bundle, relay, upstream, turn.call)

    need, prefix = need_of(load, Mode.CHAT), of_messages(chat.get("messages"))
    await leased(gateway, request, entry.bundle, need, extras.keep_alive, use, prefix)


def seed_of(request: Request) -> str:
    """Return 24 hexadecimal digits that are this request's own."""
    return hashlib.blake2b(request.number.encode(), digest_size=12).hexdigest()


def _identify(request: Request) -> str:
    """Make every answer carry `request-id`, which the clients show; return it."""
    identity = f"req_{seed_of(request)}"
    request.tell("request-id", identity)
    return identity
