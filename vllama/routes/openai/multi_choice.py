"""Answers of several choices: one request to the engine after the other, one answer to the client.

Each choice runs through a `Relay` of its own; `translate.choices` numbers and joins them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.dialects.openai.choices import Numbered, Totals, merged
from vllama.http.request import Request
from vllama.models.types import Bundle
from vllama.relay.relay import Relay
from vllama.routes.inference import relayed
from vllama.routes.regain import regaining
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.app import Gateway


class Choice(msgspec.Struct, frozen=True, kw_only=True):
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
        await made(gateway, request, bundle, relay, upstream, choices[0])
        return
    if not whole:
        await _stream(gateway, request, bundle, upstream, choices, headers)
        return
    bodies: list[bytes] = []
    for choice in choices:
        relay = Relay(request, choice.reply, whole=True, headers={}, deliver=bodies.append)
        await made(gateway, request, bundle, relay, upstream, choice)
    usages = [(choice.reply.usage, choice.new_prompt) for choice in choices]
    request.respond(200, merged(bodies, usages), headers=headers)


async def made(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    relay: Relay,
    upstream: Upstream,
    choice: Choice,
) -> None:
    """Make one choice."""
    lost = regaining(request, choice.reply, choice.call, upstream)
    await relayed(gateway, request, bundle, relay, upstream, choice.call, lost)


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
        deliver = None if last else request.write
        relay = Relay(request, reply, whole=False, headers=headers, deliver=deliver)
        await made(gateway, request, bundle, relay, upstream, choice)
        if reply.failed:
            request.end()
            return
