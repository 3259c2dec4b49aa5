"""Routes that Ollama lacks: tokenize and detokenize.

`POST /api/tokenize` `{"model", "text"|"content"|"prompt"}` → `{"model", "tokens", "count"}`;
`POST /api/detokenize` `{"model", "tokens"}` → `{"model", "text"}`. Both load the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.chat.go_json import Fields
from vllama.dialects.go_types import decode_request
from vllama.dialects.ollama.request_types import TOKENIZE
from vllama.errors import BadRequest
from vllama.http.request import Request
from vllama.routes.catalog import Entry, find_model
from vllama.routes.engine_routes import make_need_of_entry
from vllama.routes.inference import NotSupported, with_lease
from vllama.routes.ollama.models import need_name
from vllama.routes.prompts import tokenizer
from vllama.scheduler.instance import Lease
from vllama.units import parse_keep_alive
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

TEXT_FIELDS = ("text", "content", "prompt")


async def tokenize(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/tokenize`: turn text into tokens of a model."""
    name, fields, entry = await read_request(gateway, request)
    given = [field for field in TEXT_FIELDS if fields.raw(field) is not None]
    if not given:
        raise BadRequest("text is required")
    text = fields.text(given[0])

    async def use(lease: Lease, upstream: Upstream) -> None:
        tokens = await tokenizer.tokenize(upstream, lease.traits, text)
        if tokens is None:
            raise NotSupported(f"cannot tokenize for '{name}': its engine has no tokenizer route")
        request.json(200, {"model": name, "tokens": tokens, "count": len(tokens)})

    await with_lease(
        gateway, request, entry.bundle, make_need_of_entry(entry), read_keep_alive(fields), use
    )


async def detokenize(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/detokenize`: turn tokens of a model into text."""
    name, fields, entry = await read_request(gateway, request)
    if fields.raw("tokens") is None:
        raise BadRequest("tokens are required")
    limit = entry.info.vocab_size
    tokens = fields.integers("tokens")
    for token in tokens:
        if token < 0 or (limit is not None and token >= limit):  # an engine might die of it
            raise BadRequest(f"cannot detokenize: '{name}' has no token {token}")

    async def use(lease: Lease, upstream: Upstream) -> None:
        if lease.traits.tokenizer is None:
            raise NotSupported(f"cannot detokenize for '{name}': its engine has no such route")
        text = await tokenizer.detokenize(upstream, lease.traits, tokens) if tokens else ""
        request.json(200, {"model": name, "text": text})

    await with_lease(
        gateway, request, entry.bundle, make_need_of_entry(entry), read_keep_alive(fields), use
    )


async def read_request(gateway: Gateway, request: Request) -> tuple[str, Fields, Entry]:
    """Return the name, the fields and the model of a request."""
    body = decode_request(await request.body(), TOKENIZE)
    name = need_name(body)
    return name, Fields(body, "TokenizeRequest"), await find_model(gateway.catalog, name)


def read_keep_alive(fields: Fields) -> float | None:
    """Return how long the model stays. Raises BadRequest."""
    try:
        return parse_keep_alive(fields.raw("keep_alive"))
    except ValueError as error:
        raise BadRequest(str(error)) from None
