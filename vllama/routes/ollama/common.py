"""What the Ollama routes that infer do alike, in Ollama's order of checks.

See docs/reference/ollama-api.md#generate, #chat, #raw-context-system-template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from vllama.chat.engine.request import make_chat_call, make_completion_call
from vllama.chat.engine.traits import Traits
from vllama.chat.reply import Reply
from vllama.chat.request import (
    Call,
    ChatRequest,
    Fitting,
    GenerateRequest,
    Message,
    Sampling,
    Think,
)
from vllama.dialects.ollama.objects import write_load
from vllama.dialects.ollama.write import JSON
from vllama.errors import BadRequest, CapabilityMissing, ModelNotFound
from vllama.http.request import Request, now_ns
from vllama.models.types import Capability
from vllama.plan.types import Need
from vllama.routes.catalog import Entry
from vllama.routes.inference import with_lease
from vllama.routes.prompt import Prompt
from vllama.scheduler.instance import Lease
from vllama.units import rfc3339_utc
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

# an engine's stream that ends before its first token
NOTHING = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'


async def find_model(gateway: Gateway, name: str, text: str = "model '{}' not found") -> Entry:
    """Return the model, or raise ModelNotFound in the words of the route."""
    try:
        return await gateway.catalog.find(name)
    except ModelNotFound as error:
        raise ModelNotFound(name, message=text.format(name)) from error


def make_fitting(asked: ChatRequest | GenerateRequest, sampling: Sampling) -> Fitting:
    """Return what may be done so that the request fits its context."""
    return Fitting(truncate=asked.truncate, shift=asked.shift, num_keep=sampling.num_keep)


def check(entry: Entry, model: str, what: str, think: Think) -> bool | None:
    """Refuse what the model cannot do; return whether thinking is shown, None: it cannot."""
    capabilities = entry.info.capabilities
    thinks = Capability.THINKING in capabilities
    if think and not thinks:
        raise CapabilityMissing(f'"{model}" does not support thinking')
    if Capability.COMPLETION not in capabilities:
        raise CapabilityMissing(f'"{model}" does not support {what}')
    return (think is not False) if thinks else None


def make_call(
    prompt: Prompt,
    messages: Sequence[Message],
    asked: ChatRequest | GenerateRequest,
    sampling: Sampling,
    think: Think,
) -> Call:
    """Return the engine's call: a finished prompt as it is, else the messages."""
    if prompt.finished:
        return make_text_call(prompt, asked, sampling)
    return make_chat_call(
        messages,
        sampling,
        prompt.traits,
        model=asked.model,
        format=asked.format,
        tools=asked.tools if isinstance(asked, ChatRequest) else (),
        think=think,
        logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs,
    )


def begins_thinking(prompt: Prompt, asked: ChatRequest | GenerateRequest) -> bool:
    """Tell whether the answer begins inside its thinking: a grammar from the start forbids it."""
    constrained = asked.format is not None and not prompt.traits.splits_reasoning
    return prompt.opens_thinking and not constrained


def choose_template_think(
    asked: ChatRequest | GenerateRequest, shown: bool | None, traits: Traits
) -> Think:
    """Return what a template is asked for: a grammar from the first token leaves no thinking."""
    if asked.format is not None and not traits.splits_reasoning and shown is not None:
        return False
    return asked.think if isinstance(asked.think, str) else shown


def needs_chat_route(asked: ChatRequest | GenerateRequest, traits: Traits) -> bool:
    """Tell whether only the engine's chat route can do it, by the template of the model's file."""
    return asked.format is not None and not traits.formats_completions


def make_text_call(
    prompt: Prompt, asked: ChatRequest | GenerateRequest, sampling: Sampling
) -> Call:
    """Return the engine's call for a finished prompt. Raises BadRequest."""
    if asked.format is not None and not prompt.traits.formats_completions:
        raise BadRequest(
            "cannot use 'format' with a finished prompt (raw, suffix, context or a template of the "
            "request): this engine keeps to a format in chats only",
            hint="leave one of them out",
        )
    return make_completion_call(
        prompt.sent,
        sampling,
        prompt.traits,
        model=asked.model,
        format=asked.format,
        logprobs=max(1, asked.top_logprobs) if asked.logprobs or asked.top_logprobs else 0,
    )


async def answer_nothing(request: Request, reply: Reply, headers: Mapping[str, str]) -> None:
    """Answer `num_predict` 0, for which no engine is asked: some read it as "no limit"."""
    reply.feed(NOTHING, now_ns())
    kind = reply.content_type.encode()
    request.respond(200, reply.finish(now_ns()), kind, headers)


async def answer_rendered(
    request: Request, model: str, kind: str, prompt: Prompt, images: int
) -> None:
    """Answer `_debug_render_only`: the prompt as the engine would see it, nothing generated."""
    empty: dict[str, object] = (
        {"message": {"role": "", "content": ""}} if kind == "chat" else {"response": ""}
    )
    info: dict[str, object] = {"rendered_template": prompt.text or ""}
    if images:
        info["image_count"] = images
    made = rfc3339_utc(now_ns())
    value = {"model": model, "created_at": made, **empty, "done": False, "_debug_info": info}
    request.respond(200, msgspec.json.encode(value), JSON.encode())


async def answer_loaded(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    model: str,
    kind: str,
    need: Need,
    keep: float | None,
) -> None:
    """Answer an empty prompt: load the model, say so in one plain object.

    One that is loaded is not waited for, whatever it is at.
    """

    async def nothing(lease: Lease, upstream: Upstream) -> None:
        pass

    if not gateway.scheduler.touch(entry.bundle, need, keep):
        await with_lease(gateway, request, entry.bundle, need, keep, nothing)
    reply = write_load(model, now_ns(), "chat" if kind == "chat" else "generate", "load")
    request.respond(200, reply)


async def answer_unloaded(
    gateway: Gateway, request: Request, entry: Entry, model: str, kind: str
) -> None:
    """Answer an empty prompt with keep_alive 0: unload, at once, also if it was not loaded."""
    gateway.scheduler.unload(entry.bundle)
    reply = write_load(model, now_ns(), "chat" if kind == "chat" else "generate", "unload")
    request.respond(200, reply)


def add_system(
    messages: Sequence[Message],
    system: str | None,
    own: Sequence[Mapping[str, object]] = (),
) -> Sequence[Message]:
    """Put what the model brings before the conversation: its MESSAGEs (`own`), then its SYSTEM.

    The system prompt is left out if the conversation itself begins with one.
    """
    turns = (*(make_own_message(item) for item in own), *messages)
    if not system or (messages and messages[0].role == "system"):
        return turns
    return (Message(role="system", content=system), *turns)


def make_own_message(item: Mapping[str, object]) -> Message:
    """Return a message that a model brings."""
    images = item.get("images")
    return Message(
        role=str(item.get("role", "user")),
        content=str(item.get("content", "")),
        images=tuple(map(str, images)) if isinstance(images, list) else (),
    )
