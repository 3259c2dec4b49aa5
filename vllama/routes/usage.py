"""`GET /api/usage`: what was used, by key, model and day."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING

import msgspec

from vllama.errors import BadRequest, VllamaError
from vllama.http.request import JSON, Request
from vllama.keys.key import Scope
from vllama.usage.period import check_day

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

COLUMNS = ("day", "key", "model")
PARAMETERS = ("by", "since", "until")


async def list_usage(gateway: Gateway, request: Request) -> None:
    """List sums of requests, tokens and time; for a key that may not read, its own.

    `?by=` names the columns to sum by, with commas between them; `?since=` and `?until=` are days
    (UTC), such as 2026-11-23.
    """
    query = request.read_query()
    for name in query:
        if name not in PARAMETERS:
            raise BadRequest(
                f"cannot list usage by the parameter '{name}': it is not known",
                hint=f"use {', '.join(PARAMETERS)}",
            )
    by = tuple(name for name in query.get("by", ",".join(COLUMNS)).split(",") if name)
    for name in by:
        if name not in COLUMNS:
            raise BadRequest(
                f"cannot sum usage by '{name}'", hint=f"choose from {', '.join(COLUMNS)}"
            )
    days = {name: query.get(name, "") for name in ("since", "until")}
    try:
        for day in filter(None, days.values()):
            check_day(day)
    except ValueError as error:
        raise BadRequest(f"cannot list usage: {error}") from None
    access = gateway.running.of(request).access
    key = access.name if access is not None and not access.allows(Scope.READ) else None
    recorder = gateway.meter.recorder
    if recorder is None:
        raise VllamaError(
            "cannot list usage: it is not kept, because the data folder cannot be written",
            hint="the server's log says why",
        )
    await recorder.flush()
    try:
        rows = await asyncio.to_thread(recorder.store.list_rows, by, **days, key=key)
    except sqlite3.Error as error:
        raise VllamaError(f"cannot list usage: {error}") from error
    request.respond(200, msgspec.json.encode({"usage": rows}), JSON)
