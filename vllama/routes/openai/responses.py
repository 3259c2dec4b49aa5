"""OpenAI's `POST /v1/responses`.

See docs/reference/ollama-api.md#responses.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from vllama.accounts.keys.key import SEED_HEADER
from vllama.base.errors import BadRequest
from vllama.chat.bodies import encode_json
from vllama.dialects.openai.read import read_chat
from vllama.dialects.responses.answer_types import (
    DeletedResponse,
    InputItems,
    ResponseEvent,
    WholeResponse,
)
from vllama.dialects.responses.items import REFERENCE, list_items, make_input_items
from vllama.dialects.responses.read import continue_from, parse_responses
from vllama.dialects.responses.request_types import ResponsesBody
from vllama.dialects.responses.write import ResponsesWriter
from vllama.net.http.request import Request
from vllama.routes.openai.common import find_v1_model, make_seed, read_truncate, relay_blocks
from vllama.routes.prompts.prepare import check_request
from vllama.routes.response_store import Exchange
from vllama.routes.route import Dialect, Framing, Parameter, Route, RouteKind, Stream, Task

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

RESPONSES, INPUT_ITEMS, CANCEL = "/v1/responses/", "/input_items", "/cancel"


async def responses(gateway: Gateway, request: Request) -> None:
    """Continue a conversation, with typed items and events."""
    asked = parse_responses(await request.body())
    store, owner = gateway.responses, gateway.running.of(request).owner
    seed = make_seed(request) if SEED_HEADER in request.headers else secrets.token_hex(12)
    earlier = await store.chain(asked.previous, owner) if asked.previous else []
    given: Any = asked.input
    items = [item for record in earlier for item in record.items]
    if any(name.endswith(f" {REFERENCE}") for name in asked.passed_over):
        known = {item["id"] for item in items}
        given = [item for item in await store.resolve(given, owner) if item.get("id") not in known]
    own = make_input_items(given, seed)
    if earlier or given is not asked.input:
        asked = continue_from(asked, items, own)

    def keep(response: dict[str, Any]) -> None:
        record = Exchange(
            id=response["id"], owner=owner, previous=asked.previous, input=own, response=response
        )
        store.keep(record, after=earlier)

    truncate = read_truncate(request, asked.extras, default=asked.truncate)
    chat = read_chat(
        asked.chat, asked.extras, truncate=truncate, assumed={"temperature": 1.0}, may_be_empty=True
    )
    chat = replace(chat, customs=asked.customs)
    entry = await find_v1_model(gateway, asked.model)
    make = partial(
        ResponsesWriter,
        seed=seed,
        created_ns=request.started_ns,
        echo=asked.echo,
        names=asked.names,
        keep=None if asked.store is False else keep,
    )
    checked = check_request(entry, chat, "chat")
    ignored = [*asked.ignored, *asked.passed_over]
    await relay_blocks(gateway, request, checked, make, ignored=ignored)
    if asked.store:
        await store.save(f"resp_{seed}", owner, earlier)


async def get_response(gateway: Gateway, request: Request) -> None:
    """Return a stored response."""
    identity = request.path.removeprefix(RESPONSES)
    record = await gateway.responses.find(identity, gateway.running.of(request).owner)
    request.respond(200, encode_json(record.response))


async def list_input_items(gateway: Gateway, request: Request) -> None:
    """List the input items of a response, newest first."""
    identity = request.path.removeprefix(RESPONSES).removesuffix(INPUT_ITEMS)
    owner = gateway.running.of(request).owner
    *earlier, last = await gateway.responses.chain(identity, owner, "Response")
    before = [item for record in earlier for item in record.items]
    request.respond(200, encode_json(list_items([*before, *last.input])))


async def cancel_response(gateway: Gateway, request: Request) -> None:
    """Refuse to cancel a response: none run in the background."""
    identity = request.path.removeprefix(RESPONSES).removesuffix(CANCEL)
    await gateway.responses.find(identity, gateway.running.of(request).owner)
    raise BadRequest("Cannot cancel a synchronous response.")


async def delete_response(gateway: Gateway, request: Request) -> None:
    """Delete a stored response."""
    identity = request.path.removeprefix(RESPONSES)
    await gateway.responses.remove(identity, gateway.running.of(request).owner)
    request.json(200, DeletedResponse(identity, "response", deleted=True))


_api = partial(Route, dialect=Dialect.RESPONSES, answer=WholeResponse)
_kept = partial(
    _api,
    kind=RouteKind.OWN,
    on_nodes=True,
    parameters=(Parameter("id", "response ID, such as `resp_1a2b`"),),
)
ROUTES = (
    _api(
        "POST /v1/responses",
        responses,
        RouteKind.MODEL,
        task=Task.CHAT,
        body=ResponsesBody,
        stream=Stream(Framing.NAMED_EVENTS, ResponseEvent),
    ),
    _kept(f"GET {RESPONSES}{{id}}", get_response),
    _kept(f"GET {RESPONSES}{{id}}{INPUT_ITEMS}", list_input_items, answer=InputItems),
    _kept(f"DELETE {RESPONSES}{{id}}", delete_response, answer=DeletedResponse),
    _kept(f"POST {RESPONSES}{{id}}{CANCEL}", cancel_response),
)
