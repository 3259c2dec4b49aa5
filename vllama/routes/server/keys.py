"""The handlers of keys, which do what `vllama keys` does; the first key is not made over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from msgspec import Struct

from vllama.accounts.keys import store
from vllama.accounts.keys.key import NAME_PATTERN, ApiKey, Scope, make_secret
from vllama.accounts.keys.store import KeyRow, describe_key, read_fields
from vllama.base import executors
from vllama.base.errors import BadRequest, Forbidden
from vllama.base.meaning import says
from vllama.chat.bodies import decode_as
from vllama.config import keys_file
from vllama.net.http.request import Request
from vllama.routes.route import Parameter, RouteKind, server_route

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

KEYS = "/api/keys"
Given = dict[str, Any]
Positive: TypeAlias = Annotated[int, says(minimum=1)]


class KeyBody(Struct, kw_only=True):
    """The settings of a key."""

    scopes: Annotated[list[Scope], says("scopes of the key", minItems=1)] = []
    models: Annotated[list[str] | None, says("patterns of allowed model names")] = None
    rate: Annotated[str | None, says("request limit per period, such as `60/min`")] = None
    tokens: Annotated[str | None, says("token limit per period, such as `1M/day`")] = None
    model_rate: Annotated[list[str] | None, says("request limits: `MODEL=N/PERIOD`")] = None
    model_tokens: Annotated[list[str] | None, says("token limits: `MODEL=N/PERIOD`")] = None
    concurrent: Annotated[Positive | None, says("maximum parallel requests")] = None
    budget: Annotated[str | None, says("spending limit per period, such as `50/month`")] = None
    group: Annotated[str | None, says("group with shared limits")] = None
    trusts_user: Annotated[bool, says("trust the user in the header X-Forwarded-Email")] = False
    priority: Annotated[Positive | None, says("queue weight; 1 by default")] = None
    expires: Annotated[str | None, says("lifetime, such as `30d`")] = None


class NewKeyBody(KeyBody, kw_only=True):
    """A new key."""

    name: Annotated[str, says(pattern=NAME_PATTERN)]


class RotateBody(Struct):
    """A key rotation."""

    overlap: Annotated[str, says("time for which the old secret stays valid, such as `24h`")] = ""


class Keys(Struct):
    """The API keys of the server."""

    required: Annotated[bool, says("true if requests need a key")]
    own: Annotated[KeyRow | None, says("the key of this request; null without a key")]
    keys: Annotated[
        list[KeyRow], says("all named keys; without the scope `admin`, only the request's own")
    ]


async def list_keys(gateway: Gateway, request: Request) -> None:
    """List the API keys, without secrets. Without the scope admin, list only the request's own."""
    access = gateway.running.of(request).access
    rows = own = [describe_key(access)] if access is not None else []
    if access is None or access.allows(Scope.ADMIN):
        file = keys_file(gateway.in_use.config.data_dir)
        rows = [describe_key(key) for key in await executors.disk.run(store.read_keys, file)]
    request.json(200, Keys(gateway.keys.is_required, own[0] if own else None, rows))


async def add_key(gateway: Gateway, request: Request) -> None:
    """Create an API key; the secret is shown only once.

    Create a server's first key on its machine: `vllama keys add NAME --scope admin`.
    """
    given, secret = await read_body(request, *NewKeyBody.__struct_fields__), make_secret()
    name = str(given.pop("name", ""))
    fields = read_fields(given)
    make = partial(store.add_key, name=name, secret=secret, fields=fields)
    await change(gateway, request, "add", make, secret)


async def change_key(gateway: Gateway, request: Request) -> None:
    """Change the settings of a key; null removes a limit."""
    name, fields = (
        read_name(request),
        read_fields(await read_body(request, *KeyBody.__struct_fields__)),
    )

    def make(keys: dict[str, ApiKey], *, now_s: float) -> ApiKey:
        return store.change_key(keys, name, fields)

    await change(gateway, request, "change", make)


async def rotate_key(gateway: Gateway, request: Request) -> None:
    """Rotate the secret of a key; the new secret is shown only once."""
    name, secret = read_name(request).removesuffix("/rotate"), make_secret()
    fields = read_fields(await read_body(request, *RotateBody.__struct_fields__))
    make = partial(store.rotate_key, name=name, secret=secret, **fields)
    await change(gateway, request, "rotate", make, secret)


async def revoke_key(gateway: Gateway, request: Request) -> None:
    """Revoke a key permanently, or remove a revoked key from the list."""
    name = read_name(request)

    def make(keys: dict[str, ApiKey], *, now_s: float) -> ApiKey:
        is_revoked = name in keys and keys[name].revoked_s is not None
        return store.remove_key(keys, name) if is_revoked else store.revoke_key(keys, name, now_s)

    key = await change(gateway, request, "revoke", make)
    if gateway.slot_cache is not None:
        await gateway.slot_cache.forget(owner=key.identity)


async def change(
    gateway: Gateway, request: Request, act: str, make: Callable[..., ApiKey], secret: str = ""
) -> ApiKey:
    """Change the file of keys as `vllama keys` does, take it over, and answer with the key.

    The key of the request has to be an administrator's before and after it, so that no key shuts
    itself out, and two that revoke each other at once do not leave a server without one.
    """
    if not gateway.keys.is_required:
        raise Forbidden(
            "cannot change keys over HTTP: this server requires no key",
            hint="add the first key on the server's machine: vllama keys add NAME --scope admin",
        )
    access = gateway.running.of(request).access
    assert access is not None, "a server that requires a key has checked it"

    def apply(keys: dict[str, ApiKey]) -> ApiKey:
        now_s, is_named = time.time(), access.name in keys or bool(access.shown)
        if is_named:  # a key of the settings stands in no file, and stays
            check_standing(access, keys.get(access.name), now_s)
        key = make(keys, now_s=now_s)
        if is_named:
            check_standing(access, keys.get(access.name), now_s)
        return key

    file = keys_file(gateway.in_use.config.data_dir)
    key = await executors.disk.run(store.change_keys, file, apply, act)
    gateway.keys.refresh()
    request.json(200, describe_key(key, secret))
    return key


def check_standing(access: ApiKey, now: ApiKey | None, now_s: float) -> None:
    """Raise Forbidden unless a key is an administrator's still, and for as long as before."""
    stands = now is not None and now.owner == access.owner and now.allows(Scope.ADMIN)
    if not stands or now is None or now.find_fault(now_s) or now.expires_s != access.expires_s:
        raise Forbidden(
            f"cannot do this: key '{access.name}' would lose the scope admin",
            hint="use another key with the scope admin, or vllama keys",
        )


async def read_body(request: Request, *names: str) -> Given:
    """Return the fields of a body, which may be empty. Raises BadRequest."""
    form = dict[str, str | bool | int | list[str] | None]
    given: Given = decode_as(await request.body() or b"{}", form)
    for name in given.keys() - set(names):
        raise BadRequest(f"unknown field '{name}'", hint=f"choose from {', '.join(names)}")
    return given


def read_name(request: Request) -> str:
    """Return the name of a key in a path."""
    return request.path.removeprefix(f"{KEYS}/")


def _sets(spelling: str, handler: Any, body: type[Struct] | None = None) -> Any:
    """Return a route that changes keys."""
    parameters = (Parameter("name", "name of the key"),) if "{" in spelling else ()
    return server_route(
        spelling, handler, RouteKind.SETS, parameters=parameters, body=body, answer=KeyRow
    )


ROUTES = (
    server_route(f"GET {KEYS}", list_keys, RouteKind.OWN, tells=True, answer=Keys),
    _sets(f"POST {KEYS}", add_key, NewKeyBody),
    _sets(f"PATCH {KEYS}/{{name}}", change_key, KeyBody),
    _sets(f"POST {KEYS}/{{name}}/rotate", rotate_key, RotateBody),
    _sets(f"DELETE {KEYS}/{{name}}", revoke_key),
)
