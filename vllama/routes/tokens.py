"""Routes that Ollama lacks: tokenize, detokenize, and rerank for engines that can.

`POST /api/tokenize` `{"model", "text"|"content"|"prompt"}` → `{"model", "tokens", "count"}`;
`POST /api/detokenize` `{"model", "tokens"}` → `{"model", "text"}`; `POST /v1/rerank` `{"model",
"query", "documents", "top_n"}` → `{"model", "results": [{"index", "relevance_score", …}]}`, the
shape that Jina, Cohere and vLLM share. All load the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllama.chat.go_json import Fields, decode_object, encode_json
from vllama.chat.request import Call
from vllama.dialects.ollama.read import parse_model_field
from vllama.dialects.openai.extras import take_extras
from vllama.dialects.openai.read import parse_openai
from vllama.engines.base import Mode
from vllama.errors import BadRequest
from vllama.http.request import Request
from vllama.models.types import Format
from vllama.routes import tokenizer
from vllama.routes.catalog import Entry
from vllama.routes.engine_routes import fetch_or_refuse, list_traits, make_need_of_entry
from vllama.routes.inference import NotSupported, make_need, unless_gone, with_lease
from vllama.routes.ollama.common import find_model
from vllama.routes.ollama.models import read_name
from vllama.routes.openai.common import find_v1_model
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
        text = await tokenizer.detokenize(upstream, lease.traits, tokens) if tokens else ""
        request.json(200, {"model": name, "text": text})

    await with_lease(
        gateway, request, entry.bundle, make_need_of_entry(entry), read_keep_alive(fields), use
    )


async def rerank(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/rerank`: order documents, with an engine that can."""
    body, extras = take_extras(parse_openai(await request.body()))
    entry = await find_v1_model(gateway, body.get("model"))
    name = str(body["model"])
    check_documents(body)
    mode = Mode.CHAT if entry.bundle.format is Format.REMOTE else Mode.EMBED
    refusal = NotSupported(
        f"cannot rerank with '{name}': no engine here can",
        hint="compare vectors of /v1/embeddings instead",
    )
    if not any(traits.rerank_path for traits in list_traits(gateway, entry.bundle, mode)):
        raise refusal

    async def use(lease: Lease, upstream: Upstream) -> None:
        path = lease.traits.rerank_path
        if path is None:
            raise refusal
        sent = {key: value for key, value in body.items() if value is not None}
        sent["model"] = lease.traits.model_name or name
        call = Call(path=path, body=encode_json(sent))
        data = await unless_gone(request, fetch_or_refuse(upstream, call, f"rerank with '{name}'"))
        reply = decode_object(data, "RerankResponse")
        request.json(200, reply | {"model": name})

    _, load = entry.options(extras.options)
    await with_lease(gateway, request, entry.bundle, make_need(load, mode), extras.keep_alive, use)


def check_documents(body: dict[str, Any]) -> None:
    """Refuse what no engine can rank. Raises BadRequest."""
    if not isinstance(body.get("query"), str):
        raise BadRequest("Invalid type for 'query': expected a string.")
    documents = body.get("documents")
    if not isinstance(documents, list) or not documents:
        raise BadRequest("Invalid type for 'documents': expected an array that is not empty.")
    if not all(isinstance(item, str | dict) for item in documents):
        raise BadRequest("Invalid type for 'documents': expected strings or objects.")
    top_n = body.get("top_n")
    if top_n is not None and (isinstance(top_n, bool) or not isinstance(top_n, int) or top_n < 0):
        raise BadRequest("Invalid value for 'top_n': expected an integer >= 0.")


async def read_request(gateway: Gateway, request: Request) -> tuple[str, Fields, Entry]:
    """Return the name, the fields and the model of a request."""
    body: dict[str, Any] = parse_model_field(await request.body())
    name = read_name(body)
    return name, Fields(body, "TokenizeRequest"), await find_model(gateway, name)


def read_keep_alive(fields: Fields) -> float | None:
    """Return how long the model stays. Raises BadRequest."""
    try:
        return parse_keep_alive(fields.raw("keep_alive"))
    except ValueError as error:
        raise BadRequest(str(error)) from None
