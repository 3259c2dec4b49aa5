"""Anthropic's routes: `POST /v1/messages` and its `count_tokens` (contract §1.9).

Keys and versions in the headers are accepted and ignored, as Ollama does. `relay_blocks` serves
every dialect that becomes a chat request in OpenAI's form.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from vllama.engines.base import Mode
from vllama.errors import CapabilityMissing, ContextOverflow
from vllama.gateway.catalog import Entry
from vllama.gateway.http import Message, Request, Send
from vllama.gateway.inference import Prompt, dropped_header, leased, relayed
from vllama.gateway.ollama_common import need_of
from vllama.gateway.openai import CHAT_PATH, model_of, with_own
from vllama.gateway.relay import Relay
from vllama.gateway.upstream import Upstream
from vllama.models.types import Capability
from vllama.scheduler.instance import Lease
from vllama.translate.adapt import adapt_chat
from vllama.translate.anthropic_in import parse_messages
from vllama.translate.anthropic_out import MessagesReply, estimate_tokens
from vllama.translate.blocks import BlockReply
from vllama.translate.openai_messages import conversation, keep_messages
from vllama.translate.options import resolve_options
from vllama.translate.prompt import opens_thinking
from vllama.translate.types import Call

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway

IGNORED_HEADER = "x-vllama-ignored"
ESTIMATED_HEADER = "x-vllama-estimated"
MAX_NAMED = 10

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


async def messages(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/messages`."""
    identity = _identify(request)
    asked = parse_messages(await request.body())
    entry = await chat_model(gateway, asked.model)
    chat = prepared(entry, asked.chat)
    make = partial(
        MessagesReply,
        seed=seed_of(request),
        request_id=identity,
        estimate=estimate_tokens(chat),
        stop=asked.stop,
        hide_thinking=asked.hide_thinking,
    )
    try:
        await relay_blocks(gateway, request, entry, chat, make, ignored=asked.ignored)
    except ContextOverflow as error:  # the words at which Claude Code makes its context smaller
        raise ContextOverflow(f"prompt is too long: {error.message}", hint=error.hint) from error


async def count_tokens(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/messages/count_tokens`: the prompt rendered, in the engine's own tokens.

    An engine without a tokenizer gives an estimate, and a header that says so.
    """
    _identify(request)
    asked = parse_messages(await request.body(), count_only=True)
    entry = await chat_model(gateway, asked.model)
    chat = prepared(entry, asked.chat)
    need = need_of(resolve_options(entry.bundle.parameters, {})[1], Mode.CHAT)

    async def use(lease: Lease, upstream: Upstream) -> None:
        data, _ = adapt_chat(chat, lease.traits, model=asked.model)
        turns, tools = conversation(data)
        # also where the engine would count by itself, but only while it answers
        prompt = Prompt(entry.info, upstream, replace(lease.traits, usage_in_stream=False))
        try:
            await prompt.fit(turns, tools, truncate=False, think=None)
        except ContextOverflow:
            pass  # its size is what was asked for
        if prompt.tokens is None:
            await prompt.count("\n".join(turn.content for turn in turns))
        headers = {} if prompt.tokens is not None else {ESTIMATED_HEADER: "true"}
        tokens = estimate_tokens(chat) if prompt.tokens is None else prompt.tokens
        body = msgspec.json.encode({"input_tokens": tokens})
        await request.respond(200, body, headers=headers)

    await leased(gateway, request, entry.bundle, need, None, use)


# -- for every dialect of this kind -----------------------------------------------------------


async def chat_model(gateway: Gateway, name: str) -> Entry:
    """Return the model, which must be one that chats. Raises ModelNotFound, CapabilityMissing."""
    entry = await model_of(gateway, name)
    if Capability.COMPLETION not in entry.info.capabilities:
        raise CapabilityMissing(f'"{name}" does not support chat')
    return entry


def prepared(entry: Entry, chat: dict[str, Any]) -> dict[str, Any]:
    """Complete a chat request with what belongs to the model: its own turns, its sampling.

    What the model cannot do about thinking is left out in silence (contract §1.9).
    """
    defaults, _ = resolve_options(entry.bundle.parameters, {})
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
    make: Callable[..., BlockReply],
    *,
    truncate: bool = False,
    ignored: Sequence[str] = (),
) -> None:
    """Serve a chat request in OpenAI's form with the reply that `make` builds.

    `truncate`: the oldest turns may be dropped, if the front counts for the engine.
    """
    defaults, load = resolve_options(entry.bundle.parameters, {})
    thinks = Capability.THINKING in entry.info.capabilities
    shown = False if chat.get("reasoning_effort") == "none" else None
    model = str(chat["model"])

    async def use(lease: Lease, upstream: Upstream) -> None:
        traits = lease.traits
        data, passage = adapt_chat(chat, traits, model=model, defaults=defaults)
        prompt = Prompt(entry.info, upstream, traits)
        headers = {IGNORED_HEADER: _names(ignored)} if ignored else {}
        if not traits.usage_in_stream:
            turns, tools = conversation(data)
            kept = await prompt.fit(turns, tools, truncate=truncate, think=shown)
            if prompt.dropped:
                data = keep_messages(data, turns, kept)
        headers |= dropped_header(prompt)
        reply = make(
            passage,
            traits,
            prompt_tokens=prompt.tokens,
            think=thinks,
            think_opened=opens_thinking(prompt.text or ""),
        )
        relay = Relay(request, reply, whole=not passage.stream, headers=headers)
        call = Call(path=CHAT_PATH, body=data)
        await relayed(gateway, request, entry.bundle, relay, upstream, call)

    await leased(gateway, request, entry.bundle, need_of(load, Mode.CHAT), None, use)


def _names(ignored: Sequence[str]) -> str:
    """Return a header's text of what clients wrote: a few names, nothing that could end a line."""
    return ", ".join(_UNSAFE.sub("_", name) for name in ignored[:MAX_NAMED])


def seed_of(request: Request) -> str:
    """Return 24 hexadecimal digits that are this request's own."""
    return hashlib.blake2b(request.id.encode(), digest_size=12).hexdigest()


def _identify(request: Request) -> str:
    """Make every answer carry `request-id`, which the clients show; return it."""
    identity = f"req_{seed_of(request)}"
    send: Send = request.send

    def adding(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"request-id", identity.encode())]
        return send(message)

    request.send = adding
    return identity
