"""The OpenAI routes, passed through to the engine's own (contract §1.8, §1.9).

What a client sends is only changed where the engine could not take it (`Traits`); the engine is
always asked to stream, so that a client who leaves stops the generation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from vllama.engines.base import Mode
from vllama.errors import BadRequest, CapabilityMissing, ModelNotFound
from vllama.gateway.catalog import Entry
from vllama.gateway.embedding import embed_all
from vllama.gateway.http import Request
from vllama.gateway.inference import Prompt, dropped_header, leased, relayed, unless_gone
from vllama.gateway.relay import Relay
from vllama.gateway.upstream import Upstream
from vllama.models.types import Bundle, Capability
from vllama.plan.types import Need
from vllama.scheduler.instance import Lease
from vllama.translate.openai_in import (
    adapt_chat,
    adapt_completion,
    parse_openai,
    parse_openai_embeddings,
)
from vllama.translate.openai_messages import conversation, keep_messages
from vllama.translate.openai_out import (
    PassThrough,
    Whole,
    embeddings_reply,
    truncate_dimensions,
)
from vllama.translate.options import resolve_options
from vllama.translate.prompt import opens_thinking
from vllama.translate.types import Call

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"


async def model_of(gateway: Gateway, name: object) -> Entry:
    """Return the model that a body names. Raises BadRequest, ModelNotFound."""
    if not isinstance(name, str) or not name:
        raise BadRequest("you must provide a model parameter")
    try:
        return await gateway.catalog.find(name)
    except ModelNotFound as error:
        raise ModelNotFound(name, message=f"model '{name}' not found") from error


def row(bundle: Bundle) -> dict[str, object]:
    """Return a model as OpenAI lists it."""
    owner = bundle.name.rsplit("/", 1)[0] if "/" in bundle.name else "library"
    return {
        "id": bundle.name,
        "object": "model",
        "created": int(bundle.modified_s),
        "owned_by": owner,
    }


async def models(gateway: Gateway, request: Request) -> None:
    """Serve `GET /v1/models`."""
    rows = [row(bundle) for bundle, _ in await gateway.catalog.all()]
    await request.json(200, {"object": "list", "data": rows})


async def model(gateway: Gateway, request: Request) -> None:
    """Serve `GET /v1/models/{id}`; an id may contain slashes."""
    name = unquote(request.path.removeprefix("/v1/models/"))
    entry = await model_of(gateway, name)
    await request.json(200, row(entry.bundle) | {"id": name})


async def chat(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/chat/completions`."""
    body = parse_openai(await request.body())
    entry = await model_of(gateway, body.get("model"))
    if Capability.COMPLETION not in entry.info.capabilities:
        raise CapabilityMissing(f'"{body["model"]}" does not support chat')
    defaults, load = resolve_options(entry.bundle.parameters, {})
    need = Need(mode=Mode.CHAT, context_length=load.num_ctx, logprobs=bool(body.get("logprobs")))
    body = with_own(body, entry.bundle)

    async def use(lease: Lease, upstream: Upstream) -> None:
        traits = lease.traits
        data, passage = adapt_chat(body, traits, model=str(body["model"]), defaults=defaults)
        prompt = Prompt(entry.info, upstream, traits)
        if not traits.usage_in_stream:
            messages, tools = conversation(data)
            kept = await prompt.fit(messages, tools, truncate=True, think=None)
            if prompt.dropped:
                data = keep_messages(data, messages, kept)
        make = PassThrough if passage.stream else Whole
        reply = make(
            passage,
            traits,
            prompt_tokens=prompt.tokens,
            think=Capability.THINKING in entry.info.capabilities,
            think_opened=opens_thinking(prompt.text or ""),
        )
        relay = Relay(request, reply, whole=not passage.stream, headers=dropped_header(prompt))
        call = Call(path=CHAT_PATH, body=data)
        await relayed(gateway, request, entry.bundle, relay, upstream, call)

    await leased(gateway, request, entry.bundle, need, None, use)


def with_own(body: dict[str, Any], bundle: Bundle) -> dict[str, Any]:
    """Put the model's own SYSTEM and MESSAGEs before the conversation, as on Ollama's routes."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not (bundle.system or bundle.messages):
        return body
    own: list[object] = [dict(item) for item in bundle.messages]
    first = messages[0]
    brings_one = isinstance(first, dict) and first.get("role") in ("system", "developer")
    if bundle.system and not brings_one:
        own.insert(0, {"role": "system", "content": bundle.system})
    return body | {"messages": [*own, *messages]}


async def completions(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/completions`."""
    body = parse_openai(await request.body())
    entry = await model_of(gateway, body.get("model"))
    if Capability.COMPLETION not in entry.info.capabilities:
        raise CapabilityMissing(f'"{body["model"]}" does not support generate')
    defaults, load = resolve_options(entry.bundle.parameters, {})
    need = Need(mode=Mode.CHAT, context_length=load.num_ctx, logprobs=bool(body.get("logprobs")))

    async def use(lease: Lease, upstream: Upstream) -> None:
        traits = lease.traits
        data, passage = adapt_completion(body, traits, model=str(body["model"]), defaults=defaults)
        prompt = Prompt(entry.info, upstream, traits)
        if not traits.usage_in_stream and isinstance(body.get("prompt"), str):
            await prompt.count(body["prompt"])
            prompt.check()
        make = PassThrough if passage.stream else Whole
        reply = make(passage, traits, prompt_tokens=prompt.tokens)
        relay = Relay(request, reply, whole=not passage.stream, headers={})
        call = Call(path=COMPLETION_PATH, body=data)
        await relayed(gateway, request, entry.bundle, relay, upstream, call)

    await leased(gateway, request, entry.bundle, need, None, use)


async def embeddings(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/embeddings`; vectors are normalised, base64 if asked for."""
    name, inputs, dimensions, encoding = parse_openai_embeddings(await request.body())
    entry = await model_of(gateway, name)
    _, load = resolve_options(entry.bundle.parameters, {})
    need = replace(Need(mode=Mode.EMBED), context_length=load.num_ctx)

    async def use(lease: Lease, upstream: Upstream) -> None:
        work = embed_all(
            upstream,
            lease.traits,
            inputs,
            model=name,
            truncate=True,
            limit=lease.traits.context_length,
        )
        vectors, tokens = await unless_gone(request, work)
        if dimensions:
            vectors = [truncate_dimensions(vector, dimensions) for vector in vectors]
        await request.respond(200, embeddings_reply(name, vectors, tokens, encoding))

    await leased(gateway, request, entry.bundle, need, None, use)
