"""The description of the API, `GET /openapi.json`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from vllama.http.request import JSON, Request

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def get_document(gateway: Gateway, request: Request) -> None:
    """Describe the API in OpenAPI's form.

    Needs no key: it is the same for everybody, and tools read it before they have one.
    """
    needs_key = gateway.keys.is_required
    request.respond(200, await asyncio.to_thread(compose, needs_key=needs_key), JSON)


def compose(*, needs_key: bool) -> bytes:
    """Return the description; the first time this takes some tenths of a second."""
    from vllama.openapi.document import encode_document  # large, and most servers are never asked

    return encode_document(needs_key=needs_key)
