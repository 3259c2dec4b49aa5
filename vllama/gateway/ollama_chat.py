"""`POST /api/chat` (contract §1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllama.engines.base import Mode
from vllama.errors import BadRequest, CapabilityMissing
from vllama.gateway.catalog import Entry
from vllama.gateway.http import Request, now_ns
from vllama.gateway.inference import (
    Prompt,
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
    parse_chat,
)
from vllama.translate.ollama_out import (
    ChatReply,
)
from vllama.translate.openai_in import chat_call
from vllama.translate.options import resolve_options
from vllama.translate.prompt import opens_thinking
from vllama.translate.types import (
    ChatRequest,
    Message,
    Sampling,
)

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway


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
    messages = with_system(asked.messages, entry.bundle.system, entry.bundle.messages)

    async def use(lease: Lease, upstream: Upstream) -> None:
        await relay_chat(gateway, request, entry, asked, messages, sampling, shown, lease, upstream)

    await leased(gateway, request, entry.bundle, need, asked.keep_alive, use)


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
    relay = Relay(request, reply, whole=not asked.stream, headers=dropped_header(prompt))
    await relayed(gateway, request, entry.bundle, relay, upstream, call)
