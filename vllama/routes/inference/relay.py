"""The relay of an answer, and the count of what it takes: the end of every inference route."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from vllama.base.errors import VllamaError
from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.chat.schema_check import SchemaCheck, find_violations
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.models.types import Bundle
from vllama.net.http.request import Request
from vllama.net.relay import Relay
from vllama.net.relay_types import Finish
from vllama.net.upstream.pool import Upstream
from vllama.observe.tracing.setup import end_stage

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

IGNORED_HEADER, VIOLATES_HEADER = "x-vllama-ignored", "x-vllama-violates"
MAX_NAMED, MAX_NAME = 10, 80
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


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
    end_stage()
    tally, resumer = relay.reply.tally, running.resumer
    if (collect := relay.reply.collect) is not None:
        # its contents are as private as the prompt, and it is of no use to those who read captures
        running.recorder = request.recorder = None
        before_finish = collect if before_finish is None else _both(before_finish, collect)
    if (check := relay.reply.check) is not None:
        name = partial(name_violations, gateway.renderer, request, relay.reply, check)
        before_finish = name if before_finish is None else _both(before_finish, name)
    if resumer is not None:
        relay.reply.make_resumable(resumer.note_progress)
    prepare = None
    if gateway.stages.before_send:
        prepare = partial(gateway.stages.prepare, running, relay.reply)
    trials = upstream.grammars if call.grammar else None
    try:
        async with AsyncExitStack() as stack:
            if trials:
                begin = partial(stack.enter_async_context, trials.begin(relay, call.grammar))
                if (passes := relay.reply.passes) is not None:
                    passes.before_second = begin  # others need not wait for the thinking
                else:
                    await begin()
            await relay.run(upstream, call, before_finish, resumer, prepare)
    finally:
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


def name_ignored(request: Request, names: Sequence[str], header: str = IGNORED_HEADER) -> None:
    """Name in a header what had no effect: a few names, with nothing that ends a line."""
    if names:
        shown = [_UNSAFE.sub("_", name[:MAX_NAME]) for name in names[:MAX_NAMED]]
        request.set_header(header, ", ".join(shown))


async def name_violations(
    renderer: Renderer, request: Request, reply: Reply, check: SchemaCheck, _: object
) -> None:
    """Name what a response breaks of its schemas, at its end; nothing if it costs too much."""
    jobs, names = check.make_jobs(), list[str]()
    if not jobs:
        return
    key = hashlib.blake2b(repr([job[:2] for job in jobs]).encode()).hexdigest()
    with suppress(VllamaError):
        names = (await renderer.run_template(key, partial(find_violations, jobs))).split()
    if names and reply.writer.streams:
        reply.tally.collected["violates"] = names[:MAX_NAMED]
    elif names:
        name_ignored(request, names, VIOLATES_HEADER)


def count_inputs(gateway: Gateway, request: Request, bundle: Bundle, tokens: int) -> None:
    """Count the tokens of inputs for which no text is generated."""
    gateway.running.of(request).read_tokens += tokens
    gateway.metrics.count_tokens(bundle.name, tokens, 0, estimated=False)
