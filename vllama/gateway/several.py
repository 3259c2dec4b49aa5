"""Answers of several choices: one request to the engine after the other, one answer to the client.

Each choice runs through a `Relay` of its own; `translate.choices` numbers and joins them.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllama.gateway.http import Message, Request
from vllama.gateway.inference import relayed
from vllama.gateway.relay import Relay
from vllama.gateway.upstream import Upstream
from vllama.models.types import Bundle
from vllama.translate.choices import Numbered, Totals, merged
from vllama.translate.reply import Reply
from vllama.translate.types import Call

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice to be made. `new_prompt`: the first one of its prompt, whose tokens count."""

    call: Call
    reply: Reply
    new_prompt: bool = True


async def relay_choices(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    upstream: Upstream,
    choices: Sequence[Choice],
    *,
    whole: bool,
    headers: Mapping[str, str],
) -> None:
    """Make all choices in order; `whole`: one object instead of a stream."""
    if len(choices) == 1:
        relay = Relay(request, choices[0].reply, whole=whole, headers=headers)
        await relayed(gateway, request, bundle, relay, upstream, choices[0].call)
        return
    if not whole:
        await _stream(gateway, request, bundle, upstream, choices, headers)
        return
    bodies = []
    for choice in choices:
        part, pieces = kept_back(request)
        relay = Relay(part, choice.reply, whole=True, headers={})
        await relayed(gateway, part, bundle, relay, upstream, choice.call)
        bodies.append(b"".join(pieces))
    usages = [(choice.reply.usage, choice.new_prompt) for choice in choices]
    await request.respond(200, merged(bodies, usages), headers=headers)


async def _stream(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    upstream: Upstream,
    choices: Sequence[Choice],
    headers: Mapping[str, str],
) -> None:
    totals = Totals()
    for index, choice in enumerate(choices):
        last = index == len(choices) - 1
        reply = Numbered(choice.reply, totals, index, last=last, new_prompt=choice.new_prompt)
        part = request if last else continued(request)
        relay = Relay(part, reply, whole=False, headers=headers)
        try:
            await relayed(gateway, part, bundle, relay, upstream, choice.call)
        finally:
            request.status = part.status
        if reply.failed:
            if not last:
                await request.send({"type": "http.response.body", "body": b""})
            return


def continued(request: Request) -> Request:
    """Return a request whose answer does not end: what follows comes from the next one."""
    send = request.send

    def going_on(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.body":
            message = {**message, "more_body": True}
        return send(message)

    part = copy.copy(request)
    part.send = going_on
    return part


def kept_back(request: Request) -> tuple[Request, list[bytes]]:
    """Return a request whose answer is not sent but kept, and where its body will be."""
    pieces: list[bytes] = []

    async def keep(message: Message) -> None:
        pieces.append(message.get("body", b""))

    part = copy.copy(request)
    part.send = keep
    return part, pieces
