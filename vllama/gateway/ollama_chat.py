"""The Ollama routes that infer: chat, generate, embed, embeddings (contract §1.2 to §1.4).

The order of the checks decides which error a client sees; it is Ollama's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllama.engines.base import Mode
from vllama.errors import BadRequest, CapabilityMissing, ContextOverflow, ModelNotFound
from vllama.gateway.catalog import Entry
from vllama.gateway.http import Request, now_ns
from vllama.gateway.inference import (
    Prompt,
    detokenize,
    leased,
    relayed,
    tokenize,
)
from vllama.gateway.relay import Relay
from vllama.gateway.upstream import Upstream
from vllama.models.types import Capability
from vllama.plan.types import Need
from vllama.scheduler.instance import Lease
from vllama.translate.faults import clean_engine_error
from vllama.translate.ollama_in import (
    parse_chat,
    parse_embed,
    parse_generate,
    parse_legacy_embed,
)
from vllama.translate.ollama_out import (
    ChatReply,
    GenerateReply,
    embed_reply,
    legacy_embed_reply,
    load_reply,
)
from vllama.translate.openai_in import chat_call, completion_call, embed_call
from vllama.translate.openai_out import (
    decode_embeddings,
    normalize,
    truncate_dimensions,
)
from vllama.translate.options import resolve_options
from vllama.translate.prompt import opens_thinking
from vllama.translate.traits import Traits
from vllama.translate.types import (
    Call,
    ChatRequest,
    EmbedRequest,
    GenerateRequest,
    LoadOptions,
    Message,
    Sampling,
    Think,
)

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway

DROPPED_HEADER = "x-vllama-truncated"


async def found(gateway: Gateway, name: str, text: str = "model '{}' not found") -> Entry:
    """Return the model, or raise ModelNotFound in the words of the route."""
    try:
        return await gateway.catalog.find(name)
    except ModelNotFound as error:
        raise ModelNotFound(name, message=text.format(name)) from error


def need_of(load: LoadOptions, mode: Mode, *, logprobs: bool = False) -> Need:
    """Return what the load-time options ask of an instance."""
    return Need(
        mode=mode,
        context_length=load.num_ctx if load.num_ctx and load.num_ctx > 0 else None,
        gpu_layers=load.num_gpu if load.num_gpu is not None and load.num_gpu >= 0 else None,
        threads=load.num_thread or None,
        logprobs=logprobs,
    )


def check(entry: Entry, model: str, what: str, think: Think) -> bool | None:
    """Refuse what the model cannot do; return whether thinking is shown, None: it cannot."""
    capabilities = entry.info.capabilities
    thinks = Capability.THINKING in capabilities
    if think and not thinks:
        raise CapabilityMissing(f'"{model}" does not support thinking')
    if Capability.COMPLETION not in capabilities:
        raise CapabilityMissing(f'"{model}" does not support {what}')
    return (think is not False) if thinks else None


async def loaded_only(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    model: str,
    kind: str,
    need: Need,
    keep: float | None,
) -> None:
    """Answer an empty prompt: load the model, say so in one plain object."""

    async def nothing(lease: Lease, upstream: Upstream) -> None:
        reply = load_reply(model, now_ns(), "chat" if kind == "chat" else "generate", "load")
        await request.respond(200, reply)

    await leased(gateway, request, entry.bundle, need, keep, nothing)


async def unloaded(gateway: Gateway, request: Request, entry: Entry, model: str, kind: str) -> None:
    """Answer an empty prompt with keep_alive 0: unload, at once, also if it was not loaded."""
    gateway.scheduler.unload(entry.bundle)
    reply = load_reply(model, now_ns(), "chat" if kind == "chat" else "generate", "unload")
    await request.respond(200, reply)


async def chat(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/chat`."""
    asked = parse_chat(await request.body())
    if not asked.model:
        raise BadRequest("model is required")
    entry = await found(gateway, asked.model)
    if not asked.messages and asked.keep_alive == 0:
        await unloaded(gateway, request, entry, asked.model, "chat")
        return
    shown = check(entry, asked.model, "chat", asked.think)
    if asked.tools and Capability.TOOLS not in entry.info.capabilities:
        raise CapabilityMissing(f"{entry.bundle.name} does not support tools")
    sampling, load = resolve_options(entry.bundle.parameters, asked.options)
    need = need_of(load, Mode.CHAT, logprobs=asked.logprobs or asked.top_logprobs > 0)
    if not asked.messages:
        await loaded_only(gateway, request, entry, asked.model, "chat", need, asked.keep_alive)
        return
    messages = with_system(asked.messages, entry.bundle.system)

    async def use(lease: Lease, upstream: Upstream) -> None:
        await relay_chat(gateway, request, entry, asked, messages, sampling, shown, lease, upstream)

    await leased(gateway, request, entry.bundle, need, asked.keep_alive, use)


def with_system(messages: Sequence[Message], system: str | None) -> Sequence[Message]:
    """Put the model's own system prompt first, unless the conversation brings one."""
    if not system or (messages and messages[0].role == "system"):
        return messages
    return (Message(role="system", content=system), *messages)


async def relay_chat(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    asked: ChatRequest,
    messages: Sequence[Message],
    sampling: Sampling,
    shown: bool | None,
    lease: Lease,
    upstream: Upstream,
) -> None:
    """Count, cut, translate and relay one chat."""
    loaded_ns, traits = now_ns(), lease.traits
    prompt = Prompt(entry.info, upstream, traits)
    think = asked.think if shown is not None else None
    kept = await prompt.fit(messages, asked.tools, truncate=asked.truncate, think=shown)
    call = chat_call(
        kept,
        sampling,
        traits,
        model=asked.model,
        format=asked.format,
        tools=asked.tools,
        think=think,
        logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs,
    )
    reply = ChatReply(
        model=asked.model,
        stream=asked.stream,
        started_ns=request.started_ns,
        loaded_ns=loaded_ns,
        sent_ns=now_ns(),
        traits=traits,
        prompt_tokens=prompt.tokens,
        max_tokens=sampling.max_tokens,
        think=shown,
        think_opened=opens_thinking(prompt.text or ""),
        tools=bool(asked.tools),
    )
    headers = {DROPPED_HEADER: str(prompt.dropped)} if prompt.dropped else {}
    relay = Relay(request, reply, whole=not asked.stream, headers=headers)
    await relayed(gateway, request, entry.bundle, relay, upstream, call)


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

    headers = {DROPPED_HEADER: str(prompt.dropped)} if prompt.dropped else {}
    relay = Relay(request, reply, whole=not asked.stream, headers=headers)
    await relayed(gateway, request, entry.bundle, relay, upstream, call, context)


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
    messages = with_system(turn, system)
    if asked.raw or asked.suffix:
        await prompt.count(asked.prompt)
    elif asked.context:
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


async def embed(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/embed`."""
    asked = parse_embed(await request.body())
    if not asked.model:
        raise ModelNotFound("", message="model '' not found")
    entry = await found(gateway, asked.model, 'model "{}" not found, try pulling it first')
    await embedded(gateway, request, entry, asked)


async def legacy_embed(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/embeddings`, the older route for one prompt."""
    asked = parse_legacy_embed(await request.body())
    if not asked.model:
        raise BadRequest("model is required")
    entry = await found(gateway, asked.model, 'model "{}" not found, try pulling it first')
    await embedded(gateway, request, entry, asked)


async def embedded(gateway: Gateway, request: Request, entry: Entry, asked: EmbedRequest) -> None:
    """Load the model for embeddings and answer."""
    _, load = resolve_options(entry.bundle.parameters, asked.options)
    need = need_of(load, Mode.EMBED)

    async def use(lease: Lease, upstream: Upstream) -> None:
        loaded_ns = now_ns()
        vectors, tokens = await embed_all(
            upstream,
            lease.traits,
            asked.inputs,
            model=asked.model,
            truncate=asked.truncate,
            limit=min(load.num_ctx or math.inf, lease.traits.context_length),
        )
        if asked.dimensions:
            vectors = [truncate_dimensions(vector, asked.dimensions) for vector in vectors]
        if asked.legacy:
            await request.respond(200, legacy_embed_reply(vectors[0] if vectors else []))
            return
        body = embed_reply(
            asked.model,
            vectors,
            total_ns=now_ns() - request.started_ns,
            load_ns=loaded_ns - request.started_ns,
            prompt_tokens=tokens,
        )
        await request.respond(200, body)

    await leased(gateway, request, entry.bundle, need, asked.keep_alive, use)


async def embed_all(
    upstream: Upstream,
    traits: Traits,
    inputs: Sequence[str],
    *,
    model: str,
    truncate: bool,
    limit: float,
) -> tuple[list[list[float]], int]:
    """Return one normalised vector an input, and the sum of their tokens.

    One call an input: engines that give a vector a token would make a huge answer of a batch.
    """
    vectors: list[list[float]] = []
    total = 0
    for text in inputs:
        fitted = await fit_input(upstream, traits, text, truncate=truncate, limit=limit)
        answer = await upstream.fetch(embed_call(fitted or " ", traits, model=model))
        if answer.status != 200:
            raise clean_engine_error(answer.status, answer.body)
        found_vectors, tokens = decode_embeddings(answer.body, traits)
        vectors += [normalize(vector) for vector in found_vectors]
        total += tokens
    return vectors, total


async def fit_input(
    upstream: Upstream, traits: Traits, text: str, *, truncate: bool, limit: float
) -> str:
    """Cut an input to `limit` tokens, or refuse it (contract §1.4)."""
    if len(text.encode()) < limit:  # a token is a byte at least
        return text
    tokens = await tokenize(upstream, traits, text)
    if tokens is None or len(tokens) <= limit:
        return text
    if not truncate:
        raise ContextOverflow("the input length exceeds the context length")
    kept = tokens[: max(0, int(limit) - 1)]
    if not kept:
        raise ContextOverflow("input after truncation exceeds maximum context length")
    return await detokenize(upstream, traits, kept)
