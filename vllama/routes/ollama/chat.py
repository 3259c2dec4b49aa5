"""`POST /api/chat` and `POST /api/generate`.

See docs/reference/ollama-api.md#chat, #generate, #raw-context-system-template.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from vllama.base.clock import now_ns
from vllama.base.errors import BadRequest, ModelNotFound
from vllama.base.units import rfc3339_utc
from vllama.chat.reply import Reply
from vllama.chat.request import ChatRequest
from vllama.dialects.ollama.answer_types import ChatAnswer, GenerateAnswer
from vllama.dialects.ollama.objects import write_load
from vllama.dialects.ollama.read import check_format, check_raw, parse_chat, parse_generate
from vllama.dialects.ollama.write import JSON, ChatWriter, GenerateWriter
from vllama.engines.base import Mode
from vllama.net.http.request import Request
from vllama.net.relay import Relay
from vllama.net.upstream.pool import Upstream
from vllama.routes.catalog import Entry, find_model
from vllama.routes.inference.affinity import Prefix, hash_messages, hash_text
from vllama.routes.inference.lease import make_need, run_relay, with_lease
from vllama.routes.inference.reservation import count_nothing, size_answers
from vllama.routes.ollama import bodies
from vllama.routes.operation import Framing, Stream
from vllama.routes.prompts.prepare import CheckedRequest, Turn, check_request, prepare
from vllama.routes.prompts.prompt import make_dropped_header
from vllama.routes.route import RouteKind, Task, ollama_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

# an engine's stream that ends before its first token
NOTHING = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'

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
    kind: Literal["chat", "generate"] = "chat" if make_writer is ChatWriter else "generate"
    if is_unload(asked):  # at once, also if it was not loaded
        gateway.scheduler.unload(entry.bundle)
        request.respond(200, write_load(asked.model, now_ns(), kind, "unload"))
        return
    check_raw(asked)
    checked = check_request(entry, asked, kind)
    asked = check_format(asked)
    checked = dataclasses.replace(checked, asked=check_format(checked.asked))
    is_empty = asked.is_empty
    need = make_need(checked.load, Mode.CHAT, logprobs=asked.logprobs)

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
            gateway, request, entry.bundle, need, asked.keep_alive, use, prefix, size=size
        )
    if is_empty:
        request.respond(200, write_load(asked.model, now_ns(), kind, "load"))


async def relay_turn(
    gateway: Gateway,
    request: Request,
    checked: CheckedRequest,
    turn: Turn,
    writer: ChatWriter | GenerateWriter,
    upstream: Upstream,
) -> None:
    """Send a prepared request to the engine, and its answer to the client."""
    reply = turn.make_reply(writer, as_chat=False)
    headers = make_dropped_header(turn.prompt)

    async def add_context() -> None:
        if isinstance(writer, GenerateWriter) and not checked.asked.raw:
            writer.context = await turn.prompt.context(writer.text)

    if turn.sampling.max_tokens == 0:  # some engines read it as "no limit"
        await add_context()
        answer_nothing(request, reply, headers)
        return
    relay = Relay(request, reply, whole=not checked.asked.stream, headers=headers)
    call = turn.make_call()
    finish = add_context if isinstance(writer, GenerateWriter) else None
    await run_relay(gateway, request, checked.entry.bundle, relay, upstream, call, finish)


def answer_nothing(request: Request, reply: Reply, headers: dict[str, str]) -> None:
    """Answer `num_predict` 0, for which no engine is asked."""
    reply.feed(NOTHING, now_ns())
    request.respond(200, reply.finish(now_ns()), reply.content_type.encode(), headers)


def answer_rendered(request: Request, model: str, kind: str, turn: Turn) -> None:
    """Answer `_debug_render_only`: the prompt as the engine would see it, nothing generated."""
    empty: dict[str, object] = (
        {"message": {"role": "", "content": ""}} if kind == "chat" else {"response": ""}
    )
    info: dict[str, object] = {"rendered_template": turn.prompt.text or ""}
    if images := sum(message.media_count for message in turn.chat.messages):
        info["image_count"] = images
    made = rfc3339_utc(now_ns())
    value = {"model": model, "created_at": made, **empty, "done": False, "_debug_info": info}
    request.respond(200, msgspec.json.encode(value), JSON.encode())


_answers = partial(ollama_route, kind=RouteKind.MODEL)
ROUTES = (
    _answers(
        "POST /api/chat",
        chat,
        task=Task.CHAT,
        is_free=partial(only_unloads, parse_chat),
        body=bodies.CHAT,
        answer=ChatAnswer,
        stream=Stream(Framing.NDJSON, ChatAnswer),
    ),
    _answers(
        "POST /api/generate",
        generate,
        task=Task.COMPLETION,
        is_free=partial(only_unloads, parse_generate),
        body=bodies.GENERATE,
        answer=GenerateAnswer,
        stream=Stream(Framing.NDJSON, GenerateAnswer),
    ),
)
