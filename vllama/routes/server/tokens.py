"""Routes that Ollama lacks: tokenize and detokenize. Both load the model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from vllama.base.errors import BadRequest
from vllama.base.meaning import says
from vllama.dialects.ollama.read import decode_request
from vllama.dialects.ollama.request_types import DetokenizeBody, TokenizeBody
from vllama.models.lookup import Entry
from vllama.net.http.request import Request
from vllama.net.upstream.pool import Upstream
from vllama.routes.chain import find_model
from vllama.routes.inference.lease import with_lease
from vllama.routes.inference.offers import NotSupported, make_need_of_entry
from vllama.routes.ollama.models import need_name
from vllama.routes.prompts import tokenizer
from vllama.routes.route import RouteKind, ollama_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


class TokenizedText(Struct):
    """The tokens of a text."""

    model: str
    tokens: list[int]
    count: Annotated[int, says("number of tokens")]


class DetokenizedText(Struct):
    """The text of tokens."""

    model: str
    text: str


async def tokenize(gateway: Gateway, request: Request) -> None:
    """Tokenize a text.

    vllama extension. One of `text`, `content` and `prompt` is required.
    """
    name, body, entry = await read_request(gateway, request)
    given = (body.text, body.content, body.prompt)
    text = next((one for one in given if one is not None), None)
    if text is None:
        raise BadRequest("text is required")

    async def use(lease: Lease, upstream: Upstream) -> None:
        tokens = await tokenizer.tokenize(upstream, lease.traits, text)
        if tokens is None:
            raise NotSupported(f"cannot tokenize for '{name}': its engine has no tokenizer route")
        request.json(200, TokenizedText(name, tokens, len(tokens)))

    need = make_need_of_entry(entry)
    await with_lease(gateway, request, entry.bundle, need, body.keep_alive, use)


async def detokenize(gateway: Gateway, request: Request) -> None:
    """Detokenize tokens.

    vllama extension.
    """
    name, body, entry = await read_request(gateway, request)
    if body.tokens is None:
        raise BadRequest("tokens are required")
    tokens = [token or 0 for token in body.tokens]
    if (token := tokenizer.find_unknown(tokens, entry.info.vocab_size)) is not None:
        raise BadRequest(f"cannot detokenize: '{name}' has no token {token}")

    async def use(lease: Lease, upstream: Upstream) -> None:
        if lease.traits.tokenizer is None:
            raise NotSupported(f"cannot detokenize for '{name}': its engine does not support it")
        text = await tokenizer.detokenize(upstream, lease.traits, tokens) if tokens else ""
        request.json(200, DetokenizedText(name, text))

    need = make_need_of_entry(entry)
    await with_lease(gateway, request, entry.bundle, need, body.keep_alive, use)


async def read_request(gateway: Gateway, request: Request) -> tuple[str, TokenizeBody, Entry]:
    """Return the name, the body and the model of a request."""
    body = decode_request(await request.body(), TokenizeBody)
    name = need_name(body.model or body.name)
    return name, body, await find_model(gateway.catalog, name)


_counts = partial(ollama_route, kind=RouteKind.MODEL, captured=False)
ROUTES = (
    _counts("POST /api/tokenize", tokenize, body=TokenizeBody, answer=TokenizedText),
    _counts("POST /api/detokenize", detokenize, body=DetokenizeBody, answer=DetokenizedText),
)
