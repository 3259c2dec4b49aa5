"""Weights made for `/api/create`: quantised, or converted, with progress on the way.

A client that leaves ends the work, and nothing of it is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base import executors
from vllama.dialects.ollama import answer_types
from vllama.engines.child_env import build_child_env
from vllama.engines.llamacpp.quantiser import find_quantiser
from vllama.models.convert.requantise import convert_uploads, requantise
from vllama.models.create import choose_quant
from vllama.models.types import Bundle, Progress, PullEvent
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import Request
from vllama.routes.ollama.models import make_progress

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

Send = Callable[[answer_types.Progress], Awaitable[None]]


async def check_quant(
    gateway: Gateway, request: Request, base: Bundle, wanted: str | None, send: Send
) -> Bundle:
    """Return the base in the wanted quantisation: quantised here if it has another."""
    library = gateway.catalog.library
    quant = await executors.storage.run(choose_quant, library, base, wanted)
    if quant is None:
        return base

    def work(tell: Progress) -> Awaitable[Bundle]:
        return requantise(
            library,
            base,
            quant,
            lambda: find_quantiser(gateway.facts.found, gateway.environ),
            env=build_child_env(gateway.environ),
            tell=tell,
        )

    return await told(request, send, work)


async def convert_weights(
    gateway: Gateway,
    request: Request,
    name: str,
    files: Sequence[tuple[str, Path]],
    wanted: str | None,
    send: Send,
) -> Bundle:
    """Return the GGUF that uploaded safetensors become: `files` are (name, where it lies)."""
    library = gateway.catalog.library

    def work(tell: Progress) -> Awaitable[Bundle]:
        return convert_uploads(
            library,
            name,
            files,
            wanted,
            lambda: find_quantiser(gateway.facts.found, gateway.environ),
            env=build_child_env(gateway.environ),
            tell=tell,
        )

    return await told(request, send, work)


async def told(
    request: Request, send: Send, work: Callable[[Progress], Awaitable[Bundle]]
) -> Bundle:
    """Do `work`, telling its progress; a client that leaves ends it."""
    events: asyncio.Queue[PullEvent | None] = asyncio.Queue()

    async def send_all() -> None:
        while (event := await events.get()) is not None:
            if event.digest or not event.total_bytes:  # else a bar, which Ollama has not
                await send(make_progress(event))

    async def both() -> Bundle:
        sending = asyncio.ensure_future(send_all())
        try:
            return await work(events.put_nowait)
        finally:
            events.put_nowait(None)
            await sending

    return await unless_gone(request, both())
