"""Anthropic's routes: `POST /v1/messages` and its `count_tokens`.

Keys and versions in the headers are accepted and ignored, as Ollama does.

See docs/reference/ollama-api.md#messages.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from vllama.base.errors import ContextOverflow
from vllama.chat.bodies import decode_object
from vllama.chat.request import estimate_tokens
from vllama.dialects.anthropic.answer_types import Message, MessageEvent, TokenCount
from vllama.dialects.anthropic.read import MessagesRequest, parse_messages
from vllama.dialects.anthropic.request_types import CountBody, MessagesBody
from vllama.dialects.anthropic.write import MessagesWriter, make_too_long_error
from vllama.dialects.openai.read import read_chat
from vllama.models.types import Capability
from vllama.net.http.request import Request
from vllama.net.relay import COUNT_HEADER, ESTIMATE
from vllama.net.upstream.pool import Upstream
from vllama.plan.types import Need
from vllama.routes.inference.lease import with_lease
from vllama.routes.inference.relay import name_ignored
from vllama.routes.openai.common import (
    find_v1_model,
    make_seed,
    read_truncate,
    relay_blocks,
)
from vllama.routes.prompts.prepare import CheckedRequest, check_request, prepare
from vllama.routes.route import Dialect, Framing, Route, RouteKind, Stream, Task
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def messages(gateway: Gateway, request: Request) -> None:
    """Continue a conversation."""
    identity = _identify(request)
    asked = parse_messages(await request.body())
    checked = await _check(gateway, request, asked)
    make = partial(
        MessagesWriter,
        seed=make_seed(request),
        request_id=identity,
        estimate=estimate_tokens(checked.asked),
        stop=asked.stop,
        hide_thinking=asked.hide_thinking,
    )
    try:
        ignored = [*asked.ignored, *asked.unknown]
        await relay_blocks(gateway, request, checked, make, ignored=ignored)
    except ContextOverflow as error:
        raise make_too_long_error(error) from error


async def count_tokens(gateway: Gateway, request: Request) -> None:
    """Count the tokens of a conversation.

    Without a tokenizer the count is an estimate, and a header reports that.
    """
    _identify(request)
    data = await request.body()
    asked = parse_messages(data, count_only=True)
    checked = await _check(gateway, request, asked)
    whole = msgspec.structs.replace(checked.asked, truncate=False)
    uncut = dataclasses.replace(checked, asked=whole)
    name_ignored(request, [*asked.ignored, *asked.unknown])

    async def use(lease: Lease, upstream: Upstream) -> None:
        try:
            # also where the engine would count by itself, but only while it answers
            turn = await prepare(uncut, lease.traits, gateway.renderer, upstream, counts=True)
            # the body is read once more as it was the first time
            tokens = await turn.count_prompt(decode_object(data))
        except ContextOverflow as error:
            tokens = error.tokens  # its size is what was asked for
        headers = {COUNT_HEADER: ESTIMATE} if tokens is None else {}
        count = estimate_tokens(whole) if tokens is None else tokens
        body = msgspec.json.encode(TokenCount(count))
        request.respond(200, body, headers=headers)

    need = Need(load=checked.load)
    await with_lease(gateway, request, checked.entry.bundle, need, whole.keep_alive, use)


async def _check(gateway: Gateway, request: Request, asked: MessagesRequest) -> CheckedRequest:
    """Find the model, and complete the request with what it brings.

    Thinking that the model cannot do is left out in silence: Claude Code always asks for it.
    """
    truncate = read_truncate(request, asked.extras, default=False)
    chat = read_chat(asked.chat, asked.extras, truncate=truncate, assumed={}, may_be_empty=True)
    entry = await find_v1_model(gateway, asked.model)
    if Capability.THINKING not in entry.info.capabilities:
        chat = msgspec.structs.replace(chat, think=None)
    return check_request(entry, chat, "chat")


def _identify(request: Request) -> str:
    """Make every answer carry `request-id`, which the clients show; return it."""
    identity = f"req_{make_seed(request)}"
    request.set_header("request-id", identity)
    return identity


_answers = partial(Route, kind=RouteKind.MODEL, dialect=Dialect.ANTHROPIC)
ROUTES = (
    _answers(
        "POST /v1/messages",
        messages,
        task=Task.CHAT,
        body=MessagesBody,
        answer=Message,
        stream=Stream(Framing.NAMED_EVENTS, MessageEvent),
    ),
    _answers(
        "POST /v1/messages/count_tokens",
        count_tokens,
        captured=False,
        body=CountBody,
        answer=TokenCount,
    ),
)
