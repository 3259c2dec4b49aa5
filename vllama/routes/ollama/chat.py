"""`POST /api/chat` and `POST /api/generate`.

See docs/reference/ollama-api.md#chat, #generate, #raw-context-system-template.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

from vllama.base.clock import now_ns
from vllama.base.errors import BadRequest, ModelNotFound
from vllama.chat.request import ChatRequest
from vllama.dialects.ollama.answer_types import ChatAnswer, GenerateAnswer
from vllama.dialects.ollama.read import check_format, check_raw, parse_chat, parse_generate
from vllama.dialects.ollama.request_types import ChatBody, GenerateBody
from vllama.dialects.ollama.write import JSON, ChatWriter, GenerateWriter, write_without_text
from vllama.models.lookup import Entry
from vllama.net.http.request import Request
from vllama.net.relay import Relay
from vllama.net.upstream.pool import Upstream
from vllama.plan.types import Need
from vllama.routes.chain import find_model
from vllama.routes.inference.adapters import unload
from vllama.routes.inference.demand import (
    Prefix,
    count_nothing,
    hash_messages,
    hash_text,
    size_answers,
)
from vllama.routes.inference.lease import with_lease
from vllama.routes.inference.relay import name_ignored, run_relay
from vllama.routes.prompts.prepare import CheckedRequest, Turn, check_request, prepare
from vllama.routes.prompts.prompt import make_dropped_header
from vllama.routes.route import Framing, RouteKind, Stream, Task, ollama_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

# an engine's stream that ends before its first token
NOTHING = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'

Kind = Literal["chat", "generate"]

MAX_UNLOAD_BYTES = 4096
"""A longer body has a text to continue."""


async def chat(gateway: Gateway, request: Request) -> None:
    """Continue a conversation.

    An empty conversation loads the model; with `keep_alive` 0 it is unloaded.
    """
    asked = parse_chat(await request.body())
    if not asked.model:
        raise BadRequest("model is required")
    entry = await find_model(gateway.catalog, asked.model)
    await answer(gateway, request, entry, asked, ChatWriter, hash_messages(asked.messages))


async def generate(gateway: Gateway, request: Request) -> None:
    """Continue a prompt.

    An empty prompt loads the model; with `keep_alive` 0 it is unloaded.
    """
    asked = parse_generate(await request.body())
    if not asked.model:
        raise ModelNotFound("", message="model '' not found")
    entry = await find_model(gateway.catalog, asked.model)
    texts = (message.content for message in asked.messages)
    make_writer = partial(GenerateWriter, raw=asked.raw)
    await answer(gateway, request, entry, asked, make_writer, hash_text(asked.prompt, *texts))


async def only_unloads(parse: Callable[[bytes], ChatRequest], request: Request) -> bool:
    """Return whether a request only unloads a model, for which the limits of keys do not hold."""
    body = await request.body()
    request.put_back(body)
    if len(body) > MAX_UNLOAD_BYTES or b"keep_alive" not in body.lower():  # Go ignores case
        return False
    try:
        return is_unload(parse(body))
    except BadRequest:  # the handler will say so
        return False


def is_unload(asked: ChatRequest) -> bool:
    """Return whether a request asks for nothing but that a model be unloaded."""
    return asked.is_empty and asked.keep_alive == 0


async def answer(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    asked: ChatRequest,
    make_writer: Callable[..., ChatWriter | GenerateWriter],
    prefix: Prefix,
) -> None:
    """Serve a request of either route: load or unload the model, show a prompt, or answer it."""
    kind: Kind = "chat" if make_writer is ChatWriter else "generate"
    if is_unload(asked):  # at once, also if it was not loaded
        await unload(gateway, entry.bundle, "a client asked for it")
        gateway.lane.note_unload(entry.bundle.key)
        await gateway.record_act("models unload", entry.bundle.name, {"loaded": True})
        answer_empty(request, asked.model, kind, "unload")
        return
    check_raw(asked)
    checked = check_request(entry, asked, kind)
    if (asked := check_format(checked.asked)) is not checked.asked:
        checked = dataclasses.replace(checked, asked=asked)
    is_empty = asked.is_empty
    need = Need(load=checked.load, logprobs=asked.logprobs)

    async def use(lease: Lease, upstream: Upstream) -> None:
        if is_empty:
            return
        loaded_ns = now_ns()
        turn = await prepare(
            checked,
            lease.traits,
            gateway.renderer,
            upstream,
            # engines that count by themselves are not asked twice, unless there is no answer
            counts=asked.debug_render_only or checked.sampling.max_tokens == 0,
            text_wanted=kind == "generate",  # for `context`
        )
        name_ignored(request, turn.chat.ignored)
        if asked.debug_render_only:
            answer_rendered(request, asked.model, kind, turn)
            return
        writer = make_writer(
            model=asked.model,
            stream=asked.stream,
            started_ns=request.started_ns,
            loaded_ns=loaded_ns,
            sent_ns=now_ns(),
            hide_thinking=checked.is_thinking_shown is False and not asked.is_text,
            top_logprobs=asked.top_logprobs,
        )
        await relay_turn(gateway, request, checked, turn, writer, upstream)

    if is_empty and gateway.scheduler.touch(entry.bundle, need, asked.keep_alive):
        pass  # one that is loaded is not waited for, whatever it is at
    else:
        size = count_nothing if is_empty else size_answers([checked])
        await with_lease(
            gateway, request, entry.bundle, need, asked.keep_alive, use, prefix,
            size=size, streams=asked.stream and not (is_empty or asked.debug_render_only),
        )  # fmt: skip
        if is_empty:
            await gateway.record_act("models load", entry.bundle.name, {}, {"loaded": True})
    if is_empty:
        answer_empty(request, asked.model, kind, "load")


def relay_turn(
    gateway: Gateway,
    request: Request,
    checked: CheckedRequest,
    turn: Turn,
    writer: ChatWriter | GenerateWriter,
    upstream: Upstream,
) -> Awaitable[None]:
    """Send a prepared request to the engine, and its answer to the client."""
    reply = turn.make_reply(writer, as_chat=False)
    headers = make_dropped_header(turn.prompt)

    async def add_context(upstream: Upstream) -> None:
        if isinstance(writer, GenerateWriter) and not checked.asked.raw:
            writer.context = await turn.make_context(writer.text, upstream)

    async def answer_nothing() -> None:
        """Answer `num_predict` 0, for which no engine is asked: some read it as "no limit"."""
        await add_context(upstream)
        reply.feed(NOTHING, now_ns())
        request.respond(200, reply.finish(now_ns()), reply.content_type.encode(), headers)

    if turn.sampling.max_tokens == 0:
        return answer_nothing()
    relay = Relay(request, reply, whole=not checked.asked.stream, headers=headers)
    call = turn.make_call()
    finish = add_context if isinstance(writer, GenerateWriter) else None
    return run_relay(gateway, request, checked.entry.bundle, relay, upstream, call, finish)


def answer_empty(request: Request, model: str, kind: Kind, reason: str) -> None:
    """Answer a request that only loads the model, or unloads it."""
    request.respond(
        200,
        write_without_text(model, now_ns(), kind, role="assistant", done=True, done_reason=reason),
    )


def answer_rendered(request: Request, model: str, kind: Kind, turn: Turn) -> None:
    """Answer `_debug_render_only`: the prompt as the engine would see it, nothing generated."""
    info: dict[str, object] = {"rendered_template": turn.prompt.text or ""}
    if images := sum(message.media_count for message in turn.chat.messages):
        info["image_count"] = images
    body = write_without_text(model, now_ns(), kind, role="", done=False, _debug_info=info)
    request.respond(200, body, JSON.encode())


_answers = partial(ollama_route, kind=RouteKind.MODEL)
ROUTES = (
    _answers(
        "POST /api/chat",
        chat,
        task=Task.CHAT,
        is_free=partial(only_unloads, parse_chat),
        body=ChatBody,
        answer=ChatAnswer,
        stream=Stream(Framing.NDJSON, ChatAnswer),
    ),
    _answers(
        "POST /api/generate",
        generate,
        task=Task.COMPLETION,
        is_free=partial(only_unloads, parse_generate),
        body=GenerateBody,
        answer=GenerateAnswer,
        stream=Stream(Framing.NDJSON, GenerateAnswer),
    ),
)
