"""`POST /api/chat`.

See docs/reference/ollama-api.md#chat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vllama.chat.filters import compose_filters, make_stop_filter
from vllama.chat.prefill import join_answers
from vllama.chat.reply import Reply
from vllama.chat.request import Call, ChatRequest, Message, Sampling
from vllama.chat.template_style import read_style
from vllama.chat.tool_history import fit_history
from vllama.chat.tool_requests import make_toolset
from vllama.dialects.ollama.read import parse_chat
from vllama.dialects.ollama.write import ChatWriter
from vllama.engines.base import Mode
from vllama.errors import BadRequest, CapabilityMissing
from vllama.http.request import Request, now_ns
from vllama.models.types import Capability
from vllama.relay.relay import Relay
from vllama.routes.affinity import hash_messages
from vllama.routes.catalog import Entry
from vllama.routes.inference import make_need, run_relay, with_lease
from vllama.routes.ollama.common import (
    add_system,
    answer_loaded,
    answer_nothing,
    answer_rendered,
    answer_unloaded,
    begins_thinking,
    check,
    choose_template_think,
    find_model,
    make_call,
    make_fitting,
    needs_chat_route,
)
from vllama.routes.prompt import Prompt, make_dropped_header
from vllama.routes.prompt_templates import find_template
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def chat(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/chat`: continue a conversation."""
    asked = parse_chat(await request.body())
    if not asked.model:
        raise BadRequest("model is required")
    entry = await find_model(gateway, asked.model)
    if not asked.messages and asked.keep_alive == 0:
        await answer_unloaded(gateway, request, entry, asked.model, "chat")
        return
    shown = check(entry, asked.model, "chat", asked.think)
    if asked.tools and Capability.TOOLS not in entry.info.capabilities:
        raise CapabilityMissing(f"{entry.full_name} does not support tools")
    sampling, load = entry.options(asked.options)
    need = make_need(load, Mode.CHAT, logprobs=asked.logprobs or asked.top_logprobs > 0)
    if not asked.messages:
        await answer_loaded(gateway, request, entry, asked.model, "chat", need, asked.keep_alive)
        return
    messages = add_system(asked.messages, entry.bundle.system, entry.bundle.messages)
    template = find_template(entry)
    if template is None and entry.info.chat_template:
        messages = fit_history(messages, read_style(entry.info.chat_template))
    messages = join_answers(messages)

    async def use(lease: Lease, upstream: Upstream) -> None:
        own = None if needs_chat_route(asked, lease.traits) else template
        fitting = make_fitting(asked, sampling)
        prompt = Prompt(entry.info, gateway.renderer, upstream, lease.traits, own, fitting)
        await relay_chat(
            gateway, request, entry, asked, messages, sampling, shown, prompt, upstream
        )

    prefix = hash_messages(messages)
    await with_lease(gateway, request, entry.bundle, need, asked.keep_alive, use, prefix)


async def relay_chat(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    asked: ChatRequest,
    messages: Sequence[Message],
    sampling: Sampling,
    shown: bool | None,
    prompt: Prompt,
    upstream: Upstream,
) -> None:
    """Count, cut, translate and relay one chat."""
    loaded_ns = now_ns()
    kept = await prompt.fit(
        messages,
        asked.tools,
        think=choose_template_think(asked, shown, prompt.traits),
        always=asked.debug_render_only or sampling.max_tokens == 0,
        chat_only=needs_chat_route(asked, prompt.traits),
    )
    if asked.debug_render_only:
        images = sum(len(message.images) for message in kept)
        await answer_rendered(request, asked.model, "chat", prompt, images)
        return
    await prompt.shorten()
    limit = prompt.limit(sampling.max_tokens)
    if not asked.shift:
        sampling = replace(sampling, max_tokens=limit)
    call: Call | None = None
    if sampling.max_tokens != 0:
        call = make_call(prompt, kept, asked, sampling, asked.think if shown is not None else None)
    writer = ChatWriter(
        model=asked.model,
        stream=asked.stream,
        started_ns=request.started_ns,
        loaded_ns=loaded_ns,
        sent_ns=now_ns(),
        hide_thinking=shown is False,
        top_logprobs=asked.top_logprobs,
    )
    filters = compose_filters(
        prompt.traits,
        tools=make_toolset(asked.tools, read_style(entry.info.chat_template))
        if asked.tools
        else False,
        thinks=shown is not None,
        think_opened=begins_thinking(prompt, asked),
    )
    reply = Reply(
        writer,
        filters,
        stops=make_stop_filter(sampling.stop, prompt.traits),
        prompt_tokens=prompt.tokens,
        max_tokens=limit,
    )
    headers = make_dropped_header(prompt)
    if call is None:
        await answer_nothing(request, reply, headers)
        return
    relay = Relay(request, reply, whole=not asked.stream, headers=headers)
    await run_relay(gateway, request, entry.bundle, relay, upstream, call)
