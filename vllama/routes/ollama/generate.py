"""`POST /api/generate`.

See docs/reference/ollama-api.md#generate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vllama.chat.filters import compose, stop_filter
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
from vllama.routes.affinity import of_text
from vllama.routes.catalog import Entry
from vllama.routes.inference import leased, need_of, relayed
from vllama.routes.ollama.common import (
    answer_nothing,
    answer_rendered,
    begins_thinking,
    call_of,
    chat_only,
    check,
    fitting_of,
    found,
    loaded_only,
    template_think,
    text_call,
    unloaded,
    with_system,
)
from vllama.routes.prompt import Prompt, dropped_header, without_bos
from vllama.routes.prompt_templates import insertion, template_for
from vllama.routes.tokenizer import text_of
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def generate(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/generate`: continue a prompt."""
    asked = parse_generate(await request.body())
    if not asked.model:
        raise ModelNotFound("", message="model '' not found")
    entry = await found(gateway, asked.model)
    if not asked.prompt and asked.keep_alive == 0:
        await unloaded(gateway, request, entry, asked.model, "generate")
        return
    check_raw(asked)
    template = None if asked.raw else template_for(entry, asked.template)
    inserts = Capability.INSERT in entry.info.capabilities or (template and template.takes_suffix)
    if asked.suffix and not inserts:
        raise CapabilityMissing(f"{entry.full_name} does not support insert")
    shown = check(entry, asked.model, "generate", asked.think)
    sampling, load = entry.options(asked.options)
    need = need_of(load, Mode.CHAT, logprobs=asked.logprobs or asked.top_logprobs > 0)
    if not asked.prompt and not asked.images:
        await loaded_only(gateway, request, entry, asked.model, "generate", need, asked.keep_alive)
        return

    async def use(lease: Lease, upstream: Upstream) -> None:
        # a template that was asked for is not given up for a format in silence
        by_engine = chat_only(asked, lease.traits) and not asked.template
        own = None if by_engine else template
        fitting = fitting_of(asked, sampling)
        prompt = Prompt(entry.info, gateway.renderer, upstream, lease.traits, own, fitting)
        await relay_generate(
            gateway, request, entry, asked, sampling, shown, template, prompt, lease, upstream
        )

    prefix = of_text(asked.system, asked.prompt)
    await leased(gateway, request, entry.bundle, need, asked.keep_alive, use, prefix)


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
            call = text_call(prompt, asked, sampling)
        else:
            call = call_of(prompt, messages, asked, sampling, think)
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
    filters = compose(
        prompt.traits,
        thinks=shown is not None and not verbatim,
        think_opened=begins_thinking(prompt, asked),
    )
    reply = Reply(
        writer,
        filters,
        stops=stop_filter(sampling.stop, prompt.traits),
        prompt_tokens=prompt.tokens,
        max_tokens=limit,
    )

    async def context() -> None:
        if not asked.raw:
            writer.context = await prompt.context(writer.text)

    headers = dropped_header(prompt)
    if call is None:
        await context()
        await answer_nothing(request, reply, headers)
        return
    relay = Relay(request, reply, whole=not asked.stream, headers=headers)
    await relayed(
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
    think = template_think(asked, shown, lease.traits)
    if asked.raw:
        await prompt.take(asked.prompt)
        return None
    if asked.suffix:
        await prompt.take(
            insertion(entry, asked.prompt, asked.suffix, template=template, think=think)
        )
        return None
    system = asked.system if asked.system is not None else entry.bundle.system
    turn = (Message(role="user", content=asked.prompt, images=asked.images),)
    messages = with_system(turn, system, () if asked.context else entry.bundle.messages)
    if not asked.context:
        # engines that count by themselves are not asked twice, unless there is no answer to tell it
        always = asked.debug_render_only or sampling.max_tokens == 0
        return await prompt.fit(
            messages,
            (),
            think=think,
            always=always,
            chat_only=chat_only(asked, lease.traits) and not asked.template,
            text_wanted=True,  # for `context`
        )
    check_tokens(asked.context, entry.info.vocab_size)
    before = await text_of(entry.info, upstream, lease.traits, asked.context)
    await prompt.fit(messages, (), think=think, always=True)
    text = before + (prompt.text or asked.prompt)
    await prompt.take(without_bos(text, entry.info))
    return None
