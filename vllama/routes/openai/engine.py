"""The routes of an engine itself, under their own names.

`/tokenize`, `/detokenize`, `/pooling` and `/classify` are vLLM's. `/engine/ROUTE` is any route of a
model's engine, for keys with the scope `engine`. OpenAI's chats and completions stream, and their
tokens are counted; any other response comes whole.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import Struct

from vllama.accounts.keys.key import Scope
from vllama.accounts.keys.ring import current_key
from vllama.base.errors import Forbidden
from vllama.chat.request import Call
from vllama.chat.writer import ReplyOptions
from vllama.dialects.ollama.request_types import Model
from vllama.dialects.openai.read import parse_openai
from vllama.models.types import Bundle
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import JSON, Request
from vllama.net.relay import Relay
from vllama.net.upstream.pool import Upstream
from vllama.routes.inference.demand import size_context
from vllama.routes.inference.lease import with_lease
from vllama.routes.inference.offers import fetch_or_refuse, make_need_of_entry
from vllama.routes.inference.relay import run_relay
from vllama.routes.openai.common import find_v1_model, make_raw_reply
from vllama.routes.route import Parameter, RouteKind, openai_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

DOOR = "/engine"


class EngineBody(Struct):
    """A request body for an engine, which defines the fields."""

    model: Model


async def ask_engine(gateway: Gateway, request: Request) -> None:
    """Call a route of a model's engine.

    The model is named in the body or the query string. `/engine/` is for keys with the
    scope `engine`.
    """
    path, key = quote(request.path.removeprefix(DOOR)), current_key.get()
    if request.path.startswith(DOOR) and (key is None or not key.allows(Scope.ENGINE)):
        raise Forbidden(
            f"cannot serve {request.path[:80]}: it needs a key with the scope '{Scope.ENGINE}'",
            hint="ask the operator, who can run: vllama keys change NAME --scope infer,engine",
        )
    body = parse_openai(await request.body() or b"{}")
    name = str(body.get("model") or request.read_query().get("model", ""))
    entry = await find_v1_model(gateway, name)
    what = f"use {path[:80]} with '{name}'"

    async def use(lease: Lease, upstream: Upstream) -> None:
        if request.method == "GET":
            got = await unless_gone(request, upstream.get(path))
            kind = got.headers.get("content-type", "application/json")
            request.respond(got.status, got.body, kind.encode())
            return
        sent = body | {"model": lease.traits.model_name or name}
        if path.endswith("/completions"):
            await relay_as_is(gateway, request, entry.bundle, upstream, path, sent, name)
            return
        call = Call(path=path, fields=sent)
        answer = await unless_gone(request, fetch_or_refuse(upstream, call, what))
        request.respond(200, answer, JSON)

    need = make_need_of_entry(entry)
    await with_lease(gateway, request, entry.bundle, need, None, use, size=size_context)


async def relay_as_is(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    upstream: Upstream,
    path: str,
    body: dict[str, Any],
    name: str,
) -> None:
    """Relay a chat or a completion as the engine has it; the client's `name` of the model stays."""
    told, streams = body.get("stream_options"), bool(body.get("stream"))
    told = told if isinstance(told, dict) else {}
    if streams:
        body["stream_options"] = told | {"include_usage": True}
    options = ReplyOptions(
        kind="completion",
        stream=streams,
        include_usage=bool(told.get("include_usage")),
        model=name,
    )
    reply = make_raw_reply(options, upstream)
    call = Call(path=path, fields=body)
    relay = Relay(request, reply, whole=not streams, headers={})
    await run_relay(gateway, request, bundle, relay, upstream, call)


_passes = partial(
    openai_route, kind=RouteKind.MODEL, captured=False, media={"application/json": {}}
)
ROUTES = (
    _passes("POST /tokenize /detokenize /pooling /classify", ask_engine, body=EngineBody),
    _passes(
        f"GET POST {DOOR}/{{route}}",
        ask_engine,
        parameters=(Parameter("route", "route of the engine, such as `v1/load_lora_adapter`"),),
    ),
)
