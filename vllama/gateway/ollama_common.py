"""What the Ollama routes that infer do alike, in Ollama's order of checks (contract §1.2, §1.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vllama.engines.base import Mode
from vllama.errors import CapabilityMissing, ModelNotFound
from vllama.gateway.catalog import Entry
from vllama.gateway.http import Request, now_ns
from vllama.gateway.inference import (
    leased,
)
from vllama.gateway.upstream import Upstream
from vllama.models.types import Capability
from vllama.plan.types import Need
from vllama.scheduler.instance import Lease
from vllama.translate.ollama_out import (
    load_reply,
)
from vllama.translate.types import (
    LoadOptions,
    Message,
    Think,
)

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway


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


def with_system(
    messages: Sequence[Message],
    system: str | None,
    own: Sequence[Mapping[str, object]] = (),
) -> Sequence[Message]:
    """Put what the model brings before the conversation: its MESSAGEs (`own`), then its SYSTEM.

    The system prompt is left out if the conversation itself begins with one (contract §3.4).
    """
    turns = (*(own_message(item) for item in own), *messages)
    if not system or (messages and messages[0].role == "system"):
        return turns
    return (Message(role="system", content=system), *turns)


def own_message(item: Mapping[str, object]) -> Message:
    """Return a message that a model brings."""
    images = item.get("images")
    return Message(
        role=str(item.get("role", "user")),
        content=str(item.get("content", "")),
        images=tuple(map(str, images)) if isinstance(images, list) else (),
    )
