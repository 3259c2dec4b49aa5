"""Shared by the routes whose requests become a chat in OpenAI's form: `/v1`, and Anthropic's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from vllama.accounts.keys.key import SEED_HEADER, hash_seed
from vllama.base.clock import now_ns
from vllama.base.errors import BadRequest, ModelNotFound, VllamaError
from vllama.chat.inspect import WholeReader
from vllama.chat.reply import Reply
from vllama.chat.request import Call, ChatRequest, Usage
from vllama.chat.stops import StopFilter
from vllama.chat.writer import ReplyOptions
from vllama.dialects.blocks import BlockWriter
from vllama.dialects.openai.choices import merge_choices
from vllama.dialects.openai.completions import EngineTextWriter
from vllama.dialects.openai.extras import Extras
from vllama.dialects.openai.write import WholeWriter
from vllama.models.lookup import Entry
from vllama.models.types import Bundle
from vllama.net.http.request import Request
from vllama.net.relay import Relay
from vllama.net.upstream.pool import Upstream
from vllama.plan.types import Need
from vllama.routes.chain import find_model
from vllama.routes.inference.demand import hash_messages, size_answers
from vllama.routes.inference.lease import with_lease
from vllama.routes.inference.relay import name_ignored, run_relay
from vllama.routes.prompts.prepare import CheckedRequest, prepare
from vllama.routes.prompts.prompt import make_dropped_header
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


# an engine's stream that has nothing to say
NO_ANSWER = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
TRUNCATE_HEADER = b"x-vllama-truncate"
T = TypeVar("T", bound=bool | None)


def make_options(asked: ChatRequest, kind: Literal["chat", "completion"] = "chat") -> ReplyOptions:
    """Return the options of a response's writer from its request."""
    return ReplyOptions(
        kind=kind,
        stream=asked.stream,
        include_usage=asked.include_usage,
        model=asked.model,
        top_logprobs=asked.top_logprobs,
        customs=asked.customs,
    )


def make_raw_reply(options: ReplyOptions, upstream: Upstream) -> Reply:
    """Return the reply of an engine as it is, but for the model's name; its tokens are counted."""
    whole = None if options.stream else WholeReader(upstream.most_answer_bytes)
    return Reply(EngineTextWriter(options, whole), reader=whole)


async def relay_blocks(
    gateway: Gateway,
    request: Request,
    checked: CheckedRequest,
    make_writer: Callable[[ReplyOptions], BlockWriter],
    *,
    ignored: Sequence[str] = (),
) -> None:
    """Serve a request with the writer that `make_writer` builds."""
    entry, asked = checked.entry, checked.asked

    async def use(lease: Lease, upstream: Upstream) -> None:
        if not asked.messages:
            reply = Reply(make_writer(make_options(asked)), ())
            answer = reply.feed(NO_ANSWER, now_ns()) + reply.finish(now_ns())
            request.respond(200, answer, reply.content_type.encode())
            return
        traits, sent, stops = lease.traits, checked, None
        if (stop := asked.parameters.get("stop")) and not traits.names_stop:
            # it must be known which it was
            sent = dataclasses.replace(checked, sampling=replace(checked.sampling, stop=()))
            stops = StopFilter(stop, cuts=True)
        turn = await prepare(sent, traits, gateway.renderer, upstream)
        name_ignored(request, [*ignored, *turn.chat.ignored])
        headers = make_dropped_header(turn.prompt)
        reply = turn.make_reply(make_writer(make_options(asked)), stops=stops)
        relay = Relay(request, reply, whole=not asked.stream, headers=headers)
        await run_relay(gateway, request, entry.bundle, relay, upstream, turn.make_call())

    need, prefix = Need(load=checked.load), hash_messages(asked.messages)
    size = size_answers([checked])
    await with_lease(
        gateway, request, entry.bundle, need, asked.keep_alive, use, prefix,
        size=size, streams=asked.stream,
    )  # fmt: skip


class NextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice to be made. `new_prompt`: the first one of its prompt, whose tokens count."""

    call: Call
    reply: Reply
    new_prompt: bool = True


async def relay_choices(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    upstream: Upstream,
    choices: Sequence[NextChoice],
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
        try:
            await run_relay(
                gateway,
                request,
                bundle,
                relay,
                upstream,
                choice.call,
                new_prompt=choice.new_prompt,
            )
        except VllamaError as failure:
            if not request.status:
                raise
            request.failure = failure  # the engine has ended between two choices
            request.end(choice.reply.fail(failure))
            return
        upstream = relay.upstream or upstream
        if request.failure is not None and deliver is not None:
            request.end()
            return
    if bodies:
        usages = [(choice.reply.tally.usage, choice.new_prompt) for choice in choices]
        request.respond(200, merge_choices(bodies, usages), headers=headers)


async def ask_whole(
    gateway: Gateway, request: Request, checked: CheckedRequest, lease: Lease, upstream: Upstream
) -> tuple[dict[str, Any], Usage]:
    """Return the one choice of an answer that is not the client's, and its tokens."""
    turn = await prepare(checked, lease.traits, gateway.renderer, upstream)
    kept: list[bytes] = []
    reply = turn.make_reply(WholeWriter(make_options(checked.asked)))
    relay = Relay(request, reply, whole=True, headers={}, deliver=kept.append)
    await run_relay(gateway, request, checked.entry.bundle, relay, upstream, turn.make_call())
    choice: dict[str, Any] = msgspec.json.decode(kept[0])["choices"][0]
    return choice, reply.tally.usage


def make_seed(request: Request) -> str:
    """Return 24 hexadecimal digits that are this request's own, on all nodes of a head."""
    return hash_seed(request.headers.get(SEED_HEADER) or request.number.encode())


async def find_v1_model(gateway: Gateway, name: str | None) -> Entry:
    """Return the model that a body names. Raises BadRequest, ModelNotFound."""
    if not name:
        raise BadRequest("model is required")
    return await find_model(gateway.catalog, name)


async def find_text_model(
    gateway: Gateway, name: str | None, text: str = "model '{}' not found"
) -> Entry:
    """Return the model of a completion or of vectors; `text` says that there is none of a name."""
    if not name:
        raise ModelNotFound("", message="model '' not found")
    return await find_model(gateway.catalog, name, text)


def read_truncate(request: Request, extras: Extras, *, default: T) -> bool | T:
    """Tell whether what is too long may be cut: the body's word, else the header's, else `default`.

    The header is for clients that cannot add a field. Raises BadRequest.
    """
    if extras.truncate is not None:
        return extras.truncate
    if TRUNCATE_HEADER not in request.headers:
        return default
    said = request.header(TRUNCATE_HEADER).strip().lower()
    if said not in ("", "true", "false"):
        raise BadRequest(f"invalid header 'x-vllama-truncate: {said[:80]}': not true or false")
    return said == "true" if said else default
