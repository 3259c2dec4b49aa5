"""Work for a client that may leave meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from vllama.http.request import ClientGone, Request

T = TypeVar("T")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Return what `work` returns; if the client leaves first, cancel it and raise ClientGone."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.wait_for_disconnect())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
            if not working.cancelled():
                working.exception()  # there is nobody to hear it
