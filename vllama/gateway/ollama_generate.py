"""`POST /api/generate` (contract §1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllama.engines.base import Mode
from vllama.errors import BadRequest, CapabilityMissing, ModelNotFound
from vllama.gateway.catalog import Entry
from vllama.gateway.http import Request, now_ns
from vllama.gateway.inference import (
    Prompt,
    detokenize,
    dropped_header,
    leased,
    relayed,
)
from vllama.gateway.ollama_common import (
    check,
    found,
    loaded_only,
    need_of,
    unloaded,
    with_system,
)
from vllama.gateway.relay import Relay
from vllama.gateway.upstream import Upstream
from vllama.models.types import Capability
from vllama.scheduler.instance import Lease
from vllama.translate.ollama_in import (
    parse_generate,
)
from vllama.translate.ollama_out import (
    GenerateReply,
)
from vllama.translate.openai_in import chat_call, completion_call
from vllama.translate.options import resolve_options
from vllama.translate.prompt import opens_thinking
from vllama.translate.traits import Traits
from vllama.translate.types import (
    Call,
    GenerateRequest,
    Message,
    Sampling,
)

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway


async def generate(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/generate`."""
    asked = parse_generate(await request.body())
    if not asked.model:
        raise ModelNotFound("", message="model '' not found")
    entry = await found(gateway, asked.model)
    if not asked.prompt and asked.keep_alive == 0:
        await unloaded(gateway, request, entry, asked.model, "generate")
        return
    if asked.suffix and Capability.INSERT not in entry.info.capabilities:
        raise CapabilityMissing(f"{entry.bundle.name} does not support insert")
    shown = check(entry, asked.model, "generate", asked.think)
    sampling, load = resolve_options(entry.bundle.parameters, asked.options)
    need = need_of(load, Mode.CHAT, logprobs=asked.logprobs or asked.top_logprobs > 0)
    if not asked.prompt and not asked.images:
        await loaded_only(gateway, request, entry, asked.model, "generate", need, asked.keep_alive)
        return
    if asked.template:
        raise BadRequest(
            "cannot use 'template': Go templates are not supported",
            hint="send the finished prompt with raw, or leave the model's own template in place",
        )

    async def use(lease: Lease, upstream: Upstream) -> None:
        await relay_generate(gateway, request, entry, asked, sampling, shown, lease, upstream)

    await leased(gateway, request, entry.bundle, need, asked.keep_alive, use)


async def relay_generate(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    asked: GenerateRequest,
    sampling: Sampling,
    shown: bool | None,
    lease: Lease,
    upstream: Upstream,
) -> None:
    """Count, translate and relay one generation."""
    loaded_ns, traits = now_ns(), lease.traits
    prompt = Prompt(entry.info, upstream, traits)
    call = await generate_call(entry, asked, sampling, shown, prompt, traits, upstream)
    reply = GenerateReply(
        raw=asked.raw,
        model=asked.model,
        stream=asked.stream,
        started_ns=request.started_ns,
        loaded_ns=loaded_ns,
        sent_ns=now_ns(),
        traits=traits,
        prompt_tokens=prompt.tokens,
        max_tokens=sampling.max_tokens,
        think=shown if not asked.raw else None,
        think_opened=opens_thinking(prompt.text or ""),
    )

    async def context() -> None:
        if not asked.raw:
            reply.context = await prompt.context(reply.text)

    relay = Relay(request, reply, whole=not asked.stream, headers=dropped_header(prompt))
    await relayed(gateway, request, entry.bundle, relay, upstream, call, context)


def check_tokens(tokens: Sequence[int], vocab_size: int | None) -> None:
    """Refuse tokens that the model does not have: an engine might die of them."""
    if any(token < 0 or (vocab_size is not None and token >= vocab_size) for token in tokens):
        raise BadRequest("cannot use 'context': it holds tokens of another model")


async def generate_call(
    entry: Entry,
    asked: GenerateRequest,
    sampling: Sampling,
    shown: bool | None,
    prompt: Prompt,
    traits: Traits,
    upstream: Upstream,
) -> Call:
    """Return the engine's call: a finished prompt (raw, continued) or one turn of chat."""
    logprobs = max(1, asked.top_logprobs) if asked.logprobs or asked.top_logprobs else 0
    system = asked.system if asked.system is not None else entry.bundle.system
    turn = (Message(role="user", content=asked.prompt, images=asked.images),)
    messages = with_system(turn, system, () if asked.context else entry.bundle.messages)
    if asked.raw or asked.suffix:
        await prompt.count(asked.prompt)
    elif asked.context:
        check_tokens(asked.context, entry.info.vocab_size)
        before = await detokenize(upstream, traits, asked.context)
        await prompt.fit(messages, (), truncate=False, think=shown)
        await prompt.count(before + (prompt.text or asked.prompt))
    else:
        await prompt.fit(messages, (), truncate=asked.truncate, think=shown)
        return chat_call(
            messages,
            sampling,
            traits,
            model=asked.model,
            format=asked.format,
            think=asked.think if shown is not None else None,
            logprobs=asked.logprobs,
            top_logprobs=asked.top_logprobs,
        )
    prompt.check()
    return completion_call(
        prompt.text or asked.prompt,
        sampling,
        traits,
        model=asked.model,
        suffix=asked.suffix or None,
        format=asked.format,
        logprobs=logprobs,
    )
