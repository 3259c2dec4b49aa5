"""The handler by which another machine has this one serve a part of a model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Struct

from vllama.base.errors import BadRequest, VllamaError
from vllama.base.meaning import says
from vllama.chat.request import Group, LoadOptions
from vllama.net.http.request import Request
from vllama.plan.types import Need
from vllama.routes.route import Body, Framing, RouteKind, Stream, server_route
from vllama.scheduler.fair_queue import Flow
from vllama.scheduler.instance import Lease
from vllama.supervise.rank_child import SILENT_S

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

BEAT_S = 1.0
NOT_EMPTY = msgspec.Meta(min_length=1)


class Rank(Struct, kw_only=True):
    """One of the processes that serve a model together."""

    model: Annotated[str, NOT_EMPTY, says("the model, which has to be on the disk of this machine")]
    num_ctx: Annotated[int, msgspec.Meta(ge=1), says("the context in tokens")]
    size: Annotated[int, msgspec.Meta(ge=2, le=1024), says("how many machines there are")]
    rank: Annotated[int, msgspec.Meta(ge=1), says("which of them this is; the one that asks is 0")]
    address: Annotated[str, NOT_EMPTY, says("where rank 0 waits for the others")]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535), says("its port there")]


class Beat(Struct, omit_defaults=True):
    """A sign of life, or the end."""

    error: Annotated[str, says("why the process was not started")] = ""
    ended: Annotated[str, says("why it has ended")] = ""


async def serve_rank(gateway: Gateway, request: Request) -> None:
    """Serve a part of a model, together with other machines, while the connection lasts.

    A line comes every second. The process ends with the connection; if it ends before, the last
    line says so.
    """
    try:
        asked = msgspec.json.decode(await request.body(), type=Rank)
    except msgspec.DecodeError as error:
        raise BadRequest(f"cannot read the request: {error}") from None
    entry = await gateway.catalog.look_up(asked.model)
    group = Group(size=asked.size, rank=asked.rank, address=asked.address, port=str(asked.port))
    need = Need(load=LoadOptions(num_ctx=asked.num_ctx, group=group))
    flow = Flow(request.client_host)
    loading = asyncio.ensure_future(gateway.scheduler.acquire(entry.bundle, need, 0.0, None, flow))
    leaving = asyncio.ensure_future(request.wait_for_disconnect())
    request.limit_silence(SILENT_S)
    request.start(200, b"application/x-ndjson")
    try:
        while not leaving.done():
            waits = {leaving} if loading.done() else {leaving, loading}
            await asyncio.wait(waits, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if loading.done() and (cause := find_end(loading.result())):
                request.end(msgspec.json.encode(Beat(ended=cause)) + b"\n")
                break
            if not leaving.done():
                request.write(b"{}\n")
    except VllamaError as error:
        request.end(msgspec.json.encode(Beat(error.sentence())) + b"\n")
    finally:
        leaving.cancel()
        if not loading.done():
            loading.cancel()
            await asyncio.wait({loading})
        if not loading.cancelled() and loading.exception() is None:
            gateway.scheduler.release(loading.result())
        gateway.scheduler.unload(entry.bundle, "its group has ended")  # also what still loads


def find_end(lease: Lease) -> str:
    """Return why the process that a lease was given for has ended, "" if it lives."""
    process = lease.instance.process
    if process is not None and lease.endpoint in process.endpoints:
        return ""
    diagnosis = process.last_diagnosis if process is not None else None
    return diagnosis.cause if diagnosis is not None else "its process has ended"


_FIELDS = msgspec.json.schema(Rank)["$defs"]["Rank"]["properties"]
ROUTES = (
    server_route(
        "POST /api/group",
        serve_rank,
        RouteKind.TOGETHER,
        body=Body(name="GroupRequest", required=tuple(_FIELDS), fields=_FIELDS),
        stream=Stream(Framing.NDJSON, Beat),
        errors=(404,),
    ),
)
