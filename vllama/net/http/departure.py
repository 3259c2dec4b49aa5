"""Work for a client that may leave meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from vllama.net.http.request import ClientGone, Request

T = TypeVar("T")


async def unless_gone(
    request: Request, work: Awaitable[T], give_back: Callable[[T], object] | None = None
) -> T:
    """Return the result of `work`; if the client leaves first, cancel it and raise ClientGone.

    `give_back` takes a result that nobody gets: this task may be canceled at the very moment at
    which the work is done.
    """
    is_returned = False
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.wait_for_disconnect())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        is_returned = True
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
        lost = not (is_returned or working.cancelled() or working.exception())
        if lost and give_back is not None:
            give_back(working.result())
