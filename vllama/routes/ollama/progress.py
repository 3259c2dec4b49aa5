"""Work that a request waits for, with its progress as lines: downloads, and weights that are made.

A client that leaves ends the work, and nothing of it is left but a part of a download.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vllama.base import executors
from vllama.base.errors import ModelNotFound, NoPlan, SourceError, VllamaError
from vllama.dialects.errors import make_ollama_error
from vllama.dialects.ollama import answer_types
from vllama.engines.child_env import build_child_env
from vllama.engines.llamacpp.quantizer import find_quantizer
from vllama.models.convert.job import convert_uploads, requantize
from vllama.models.create import choose_quant
from vllama.models.names.ref import DEFAULT_HOST, HUB_HOSTS, ModelRef
from vllama.models.types import Bundle, Progress, PullEvent
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import Request
from vllama.plan.choose import list_loadable_formats
from vllama.plan.form_choice import FitsHere
from vllama.routes.pulls import Pull
from vllama.routes.route import Framing, Stream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


log = logging.getLogger(__name__)
PROGRESS = Stream(Framing.NDJSON, answer_types.Progress)
NDJSON = b"application/x-ndjson"


async def stream_pull(
    gateway: Gateway,
    request: Request,
    name: str,
    tell: Callable[[PullEvent], Awaitable[None]],
    *,
    insecure: bool = False,
) -> Bundle:
    """Download `name`, await `tell` for each step, and return the model.

    A download that is under way is joined; it ends with the last client that waits for it.

    `insecure` allows plain http to a registry.

    Raises ClientGone, and what the library raises.
    """

    async def follow() -> Bundle:
        # in one step: in between, its last client could leave and end it
        return await join_pull(gateway, name, insecure=insecure).follow(tell)

    return await unless_gone(request, follow())


def join_pull(gateway: Gateway, name: str, *, insecure: bool = False) -> Pull:
    """Return the download of `name`, which is started unless it is under way already."""

    def download(progress: Progress, cancel: threading.Event) -> Bundle:
        try:
            return gateway.catalog.library.remote.pull(
                name,
                formats=list_loadable_formats(gateway.facts),
                progress=progress,
                cancel=cancel,
                insecure=insecure,
                fits=FitsHere(gateway.facts),
            )
        except VllamaError as error:
            if not cancel.is_set():
                log.warning("pull of %r failed: %s", name, error.sentence())
            tells_network = isinstance(error, SourceError | ModelNotFound | NoPlan)
            is_known = gateway.guards.loopback or _is_known(ModelRef.parse(name).host)
            if is_known or not tells_network:
                raise
            # whoever may pull from any address must not learn who listens inside this network
            raise SourceError(
                f"cannot pull '{name}': the model does not exist, or the host is not a registry",
                hint="check the server's log",
            ) from error
        finally:
            loop.call_soon_threadsafe(gateway.catalog.forget)

    loop = asyncio.get_running_loop()
    return gateway.pulls.join(name, download, insecure=insecure)


def _is_known(host: str | None) -> bool:
    """Tell whether a registry is one of those that names mean if they name none."""
    return host is None or host.lower() in (DEFAULT_HOST, *HUB_HOSTS)


Send = Callable[[answer_types.Progress], Awaitable[None]]


def _tools(gateway: Gateway) -> dict[str, Any]:
    """Return the tools for requantizing and converting."""
    return {
        "find_quantizer": lambda: find_quantizer(gateway.facts.found, gateway.environ),
        "env": build_child_env(gateway.environ),
    }


async def check_quant(
    gateway: Gateway, request: Request, base: Bundle, wanted: str | None, send: Send
) -> Bundle:
    """Return the base in the wanted quantization, converted if no engine reads it as it is."""
    library = gateway.catalog.library
    formats = partial(list_loadable_formats, gateway.facts)
    quant = await executors.storage.run(choose_quant, library, base, wanted, formats)
    if quant is None:
        return base
    return await report(request, send, partial(requantize, library, base, quant, **_tools(gateway)))


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
    work = partial(convert_uploads, library, name, files, wanted, **_tools(gateway))
    return await report(request, send, work)


async def report(request: Request, send: Send, work: Callable[..., Awaitable[Bundle]]) -> Bundle:
    """Do `work`, which is given a function to `tell` its progress; a client that leaves ends it."""
    events: asyncio.Queue[PullEvent | None] = asyncio.Queue()

    async def send_all() -> None:
        while (event := await events.get()) is not None:
            if event.digest or not event.total_bytes:  # else a bar, which Ollama has not
                await send(make_progress(event))

    async def both() -> Bundle:
        sending = asyncio.ensure_future(send_all())
        try:
            return await work(tell=events.put_nowait)
        finally:
            events.put_nowait(None)
            await sending

    return await unless_gone(request, both())


def make_progress(event: PullEvent) -> answer_types.Progress:
    """Return a line of the stream."""
    if not event.digest:
        return answer_types.Progress(event.status)
    return answer_types.Progress(
        event.status, event.digest, event.total_bytes or 0, event.completed_bytes or 0
    )


async def send_line(request: Request, value: object) -> None:
    """Send one NDJSON line, and the head before the first."""
    if not request.status:
        request.start(200, NDJSON)
    request.write(msgspec.json.encode(value) + b"\n")
    await request.wait_until_drained()


async def send_error(request: Request, error: VllamaError) -> None:
    """Send an error as an NDJSON line: the stream failed, though its status was 200."""
    request.failure = error
    await send_line(request, make_ollama_error(error, error.sentence()))


class Lines:
    """The progress of one request: NDJSON, or with `stream` false only the end."""

    def __init__(self, request: Request, *, stream: bool) -> None:
        self._request = request
        self._stream = stream

    async def send(self, value: answer_types.Progress) -> None:
        """Send a line, if lines are wanted."""
        if self._stream:
            await send_line(self._request, value)

    async def end(self, error: VllamaError | None = None) -> None:
        """End the answer. An error becomes a line, or is raised if nothing was sent yet."""
        if error is not None and not self._request.status:
            raise error
        if error is not None:
            await send_error(self._request, error)
        elif not self._stream:
            self._request.json(200, answer_types.Success("success"))
            return
        self._request.end()
