"""The relay of an answer, and the count of what it takes: the end of every inference route."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vllama.chat.request import Call
from vllama.models.types import Bundle
from vllama.net.http.request import Request
from vllama.net.relay import Relay
from vllama.net.relay_types import Finish
from vllama.net.upstream.pool import Upstream
from vllama.observe.tracing.setup import end_stage

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def run_relay(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    relay: Relay,
    upstream: Upstream,
    call: Call,
    before_finish: Finish | None = None,
    *,
    new_prompt: bool = True,
) -> None:
    """Run a relay and count its tokens, also those of an answer that nobody waited for.

    `new_prompt` False: the prompt is that of another choice, which has been counted. A call that
    the engine did not begin to answer has no tokens; it may be sent again.
    """
    running = gateway.running.of(request)
    running.follow(relay, relay.reply.tally, new_prompt=new_prompt)
    if running.recorder is not None:
        running.recorder.call = call
    end_stage()
    tally, resumer = relay.reply.tally, running.resumer
    if (collect := relay.reply.collect) is not None:
        # it tells as much as the prompt, and is of no use to those who read captures
        running.recorder = request.recorder = None
        before_finish = collect if before_finish is None else _both(before_finish, collect)
    salt_field = running.lease.traits.salt_field if running.lease is not None else None
    if salt_field is not None and running.access is not None:
        body = msgspec.json.decode(call.body) | {salt_field: running.access.identity}
        call = msgspec.structs.replace(call, body=msgspec.json.encode(body))
    turn = None
    if gateway.slot_cache is not None and relay.reply.prompt_text is not None:
        turn = gateway.slot_cache.begin(running, relay.reply.prompt_text)
    if resumer is not None:
        relay.reply.make_resumable(resumer.note_progress)
    elif turn is not None:
        relay.reply.make_resumable(lambda: None)  # for its text
    prepare = turn.prepare if turn is not None else None
    try:
        await relay.run(upstream, call, before_finish, resumer, prepare)
    finally:
        if turn is not None:
            turn.end(relay.reply.taken_text, tally.usage)
        count_prompt = relay.reply.count_prompt
        if tally.left and new_prompt and count_prompt and not tally.usage.prompt_tokens:
            tally.prompt_tokens = await count_prompt()
        usage = tally.usage
        if tally.has_begun:
            gateway.metrics.count_tokens(
                bundle.name,
                usage.prompt_tokens if new_prompt else 0,
                usage.completion_tokens,
                cached=(usage.cached_tokens or 0) if new_prompt else 0,
                estimated=usage.estimated,
            )


def _both(first: Finish, second: Finish) -> Finish:
    async def finish(upstream: Upstream) -> None:
        await first(upstream)
        await second(upstream)

    return finish


def count_inputs(gateway: Gateway, request: Request, bundle: Bundle, tokens: int) -> None:
    """Count the tokens of inputs for which no text is generated."""
    gateway.running.of(request).read_tokens += tokens
    gateway.metrics.count_tokens(bundle.name, tokens, 0, estimated=False)
