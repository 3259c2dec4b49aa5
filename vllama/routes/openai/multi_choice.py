"""Answers of several choices: one request to the engine after the other, one answer to the client.

Each choice runs through a `Relay` of its own; the `Part` of its writer numbers it in a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.dialects.openai.choices import merge_choices
from vllama.models.types import Bundle
from vllama.net.http.request import Request
from vllama.net.relay import Relay
from vllama.net.upstream.pool import Upstream
from vllama.routes.inference.lease import run_relay

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


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
    bodies: list[bytes] = []
    for number, choice in enumerate(choices):
        deliver = None
        if len(choices) > 1 and whole:
            deliver = bodies.append
        elif number < len(choices) - 1:
            deliver = request.write  # the answer goes on
        relay = Relay(request, choice.reply, whole=whole, headers=headers, deliver=deliver)
        await run_relay(
            gateway,
            request,
            bundle,
            relay,
            upstream,
            choice.call,
            new_prompt=choice.new_prompt,
        )
        if request.failure is not None and deliver is not None:
            request.end()
            return
    if bodies:
        usages = [(choice.reply.tally.usage, choice.new_prompt) for choice in choices]
        request.respond(200, merge_choices(bodies, usages), headers=headers)
