"""The description of the API, `GET /openapi.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.http.request import JSON, Request

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def get_document(gateway: Gateway, request: Request) -> None:
    """Describe the API in OpenAPI's form.

    Needs no key: it is the same for everybody, and tools read it before they have one.
    """
    from vllama.openapi.document import encode_document  # large, and most servers are never asked

    request.respond(200, encode_document(needs_key=bool(gateway.guards.keys)), JSON)
