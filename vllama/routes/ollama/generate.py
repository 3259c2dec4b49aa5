"""`POST /api/generate`.

See docs/reference/ollama-api.md#generate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vllama.chat.filters import compose_filters, make_stop_filter
from vllama.chat.go_template_prompt import GoTemplate
from vllama.chat.reply import Reply
from vllama.chat.request import Call, GenerateRequest, Message, Sampling
from vllama.dialects.ollama.read import check_raw, parse_generate
from vllama.dialects.ollama.write import GenerateWriter
from vllama.engines.base import Mode
from vllama.errors import BadRequest, CapabilityMissing, ModelNotFound
from vllama.http.request import Request, now_ns
from vllama.models.types import Capability
from vllama.relay.relay import Relay
from vllama.routes.affinity import hash_text
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
    make_text_call,
    needs_chat_route,
)
from vllama.routes.prompt import Prompt, make_dropped_header, strip_bos
from vllama.routes.prompt_templates import find_template, render_insertion
from vllama.routes.tokenizer import decode_tokens
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def generate(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/generate`: continue a prompt."""
    asked = parse_generate(await request.body())
    if not asked.model:
        raise ModelNotFound("", message="model '' not found")
    entry = await find_model(gateway, asked.model)
    if not asked.prompt and asked.keep_alive == 0:
        await answer_unloaded(gateway, request, entry, asked.model, "generate")
        return
    check_raw(asked)
    template = None if asked.raw else find_template(entry, asked.template)
    inserts = Capability.INSERT in entry.info.capabilities or (template and template.takes_suffix)
    if asked.suffix and not inserts:
        raise CapabilityMissing(f"{entry.full_name} does not support insert")
    shown = check(entry, asked.model, "generate", asked.think)
    sampling, load = entry.options(asked.options)
    need = make_need(load, Mode.CHAT, logprobs=asked.logprobs or asked.top_logprobs > 0)
    if not asked.prompt and not asked.images:
        await answer_loaded(
            gateway, request, entry, asked.model, "generate", need, asked.keep_alive
        )
        return

    async def use(lease: Lease, upstream: Upstream) -> None:
        # a template that was asked for is not given up for a format in silence
        by_engine = needs_chat_route(asked, lease.traits) and not asked.template
        own = None if by_engine else template
        fitting = make_fitting(asked, sampling)
        prompt = Prompt(entry.info, gateway.renderer, upstream, lease.traits, own, fitting)
        await relay_generate(
            gateway, request, entry, asked, sampling, shown, template, prompt, lease, upstream
        )

    prefix = hash_text(asked.system, asked.prompt)
    await with_lease(gateway, request, entry.bundle, need, asked.keep_alive, use, prefix)


async def relay_generate(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    asked: GenerateRequest,
    sampling: Sampling,
    shown: bool | None,
    template: GoTemplate | None,
    prompt: Prompt,
    lease: Lease,
    upstream: Upstream,
) -> None:
    """Count, translate and relay one generation."""
    loaded_ns = now_ns()
    messages = await prepare(entry, asked, sampling, shown, template, prompt, lease, upstream)
    if asked.debug_render_only:
        await answer_rendered(request, asked.model, "generate", prompt, len(asked.images))
        return
    await prompt.shorten()
    limit = prompt.limit(sampling.max_tokens)
    if not asked.shift:
        sampling = replace(sampling, max_tokens=limit)
    call: Call | None = None
    if sampling.max_tokens != 0:
        think = asked.think if shown is not None else None
        if messages is None:
            call = make_text_call(prompt, asked, sampling)
        else:
            call = make_call(prompt, messages, asked, sampling, think)
    verbatim = asked.raw or bool(asked.suffix)
    writer = GenerateWriter(
        raw=asked.raw,
        model=asked.model,
        stream=asked.stream,
        started_ns=request.started_ns,
        loaded_ns=loaded_ns,
        sent_ns=now_ns(),
        hide_thinking=shown is False and not verbatim,
        top_logprobs=asked.top_logprobs,
    )
    filters = compose_filters(
        prompt.traits,
        thinks=shown is not None and not verbatim,
        think_opened=begins_thinking(prompt, asked),
    )
    reply = Reply(
        writer,
        filters,
        stops=make_stop_filter(sampling.stop, prompt.traits),
        prompt_tokens=prompt.tokens,
        max_tokens=limit,
    )

    async def context() -> None:
        if not asked.raw:
            writer.context = await prompt.context(writer.text)

    headers = make_dropped_header(prompt)
    if call is None:
        await context()
        await answer_nothing(request, reply, headers)
        return
    relay = Relay(request, reply, whole=not asked.stream, headers=headers)
    await run_relay(
        gateway, request, entry.bundle, relay, upstream, call, None if asked.raw else context
    )


def check_tokens(tokens: Sequence[int], vocab_size: int | None) -> None:
    """Refuse tokens that the model does not have: an engine might die of them."""
    if any(token < 0 or (vocab_size is not None and token >= vocab_size) for token in tokens):
        raise BadRequest("cannot use 'context': it holds tokens of another model")


async def prepare(
    entry: Entry,
    asked: GenerateRequest,
    sampling: Sampling,
    shown: bool | None,
    template: GoTemplate | None,
    prompt: Prompt,
    lease: Lease,
    upstream: Upstream,
) -> Sequence[Message] | None:
    """Fill `prompt`; return the turn that it is, None if its text is to be sent as it is.

    A text as it is: raw, with a gap to fill, or one that continues an earlier answer's tokens.
    """
    think = choose_template_think(asked, shown, lease.traits)
    if asked.raw:
        await prompt.take(asked.prompt)
        return None
    if asked.suffix:
        await prompt.take(
            render_insertion(entry, asked.prompt, asked.suffix, template=template, think=think)
        )
        return None
    system = asked.system if asked.system is not None else entry.bundle.system
    turn = (Message(role="user", content=asked.prompt, images=asked.images),)
    messages = add_system(turn, system, () if asked.context else entry.bundle.messages)
    if not asked.context:
        # engines that count by themselves are not asked twice, unless there is no answer to tell it
        always = asked.debug_render_only or sampling.max_tokens == 0
        return await prompt.fit(
            messages,
            (),
            think=think,
            always=always,
            chat_only=needs_chat_route(asked, lease.traits) and not asked.template,
            text_wanted=True,  # for `context`
        )
    check_tokens(asked.context, entry.info.vocab_size)
    before = await decode_tokens(entry.info, upstream, lease.traits, asked.context)
    await prompt.fit(messages, (), think=think, always=True)
    text = before + (prompt.text or asked.prompt)
    await prompt.take(strip_bos(text, entry.info))
    return None
