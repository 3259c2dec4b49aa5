"""Routes that Ollama lacks: tokenize, detokenize, and rerank, which no engine here can yet.

`POST /api/tokenize` `{"model", "text"|"content"|"prompt"}` → `{"model", "tokens", "count"}`;
`POST /api/detokenize` `{"model", "tokens"}` → `{"model", "text"}`. Both load the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllama.engines.base import Mode
from vllama.errors import BadRequest, CapabilityMissing
from vllama.gateway import inference
from vllama.gateway.catalog import Entry
from vllama.gateway.http import Request
from vllama.gateway.inference import leased
from vllama.gateway.ollama_common import found, need_of
from vllama.gateway.ollama_models import named
from vllama.gateway.openai import model_of
from vllama.gateway.upstream import Upstream
from vllama.models.types import Capability
from vllama.plan.types import Need
from vllama.scheduler.instance import Lease
from vllama.translate.decoding import Fields
from vllama.translate.ollama_in import parse_model_field
from vllama.translate.openai_in import parse_openai
from vllama.translate.options import resolve_options
from vllama.units import parse_keep_alive

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway

TEXT_FIELDS = ("text", "content", "prompt")


class NotSupported(CapabilityMissing):
    """No engine here can do it."""

    status = 501


async def tokenize(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/tokenize`."""
    name, fields, entry = await asked(gateway, request)
    given = [field for field in TEXT_FIELDS if fields.raw(field) is not None]
    if not given:
        raise BadRequest("text is required")
    text = fields.text(given[0])

    async def use(lease: Lease, upstream: Upstream) -> None:
        tokens = await inference.tokenize(upstream, lease.traits, text)
        if tokens is None:
            raise NotSupported(f"cannot tokenize for '{name}': its engine has no tokenizer route")
        await request.json(200, {"model": name, "tokens": tokens, "count": len(tokens)})

    await leased(gateway, request, entry.bundle, need(entry), keep_alive(fields), use)


async def detokenize(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/detokenize`."""
    name, fields, entry = await asked(gateway, request)
    if fields.raw("tokens") is None:
        raise BadRequest("tokens are required")
    limit = entry.info.vocab_size
    tokens: list[int] = []
    for item in fields.items("tokens", "[]int"):
        if isinstance(item, bool) or not isinstance(item, int):
            fields.refuse("tokens", item, "int")
        if item < 0 or (limit is not None and item >= limit):  # an engine might die of it
            raise BadRequest(f"cannot detokenize: '{name}' has no token {item}")
        tokens.append(item)

    async def use(lease: Lease, upstream: Upstream) -> None:
        if lease.traits.tokenizer is None:
            raise NotSupported(f"cannot detokenize for '{name}': its engine has no such route")
        text = await inference.detokenize(upstream, lease.traits, tokens) if tokens else ""
        await request.json(200, {"model": name, "text": text})

    await leased(gateway, request, entry.bundle, need(entry), keep_alive(fields), use)


async def rerank(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/rerank`: say that it cannot be done."""
    name = parse_openai(await request.body()).get("model")
    await model_of(gateway, name)
    raise NotSupported(
        f"cannot rerank with '{name}': no engine here can",
        hint="compare vectors of /v1/embeddings instead",
    )


async def asked(gateway: Gateway, request: Request) -> tuple[str, Fields, Entry]:
    """Return the name, the fields and the model of a request."""
    body: dict[str, Any] = parse_model_field(await request.body())
    name = named(body)
    return name, Fields(body, "TokenizeRequest"), await found(gateway, name)


def need(entry: Entry) -> Need:
    """Return what the model is loaded for: vectors if it makes nothing else."""
    _, load = resolve_options(entry.bundle.parameters, {})
    chats = Capability.COMPLETION in entry.info.capabilities
    return need_of(load, Mode.CHAT if chats else Mode.EMBED)


def keep_alive(fields: Fields) -> float | None:
    """Return how long the model stays. Raises BadRequest."""
    try:
        return parse_keep_alive(fields.raw("keep_alive"))
    except ValueError as error:
        raise BadRequest(str(error)) from None
