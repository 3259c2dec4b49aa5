"""Shared by the routes whose requests become a chat in OpenAI's form: `/v1`, and Anthropic's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from vllama.chat.filters import StopFilter
from vllama.chat.reply import ReplyOptions
from vllama.chat.request import Fitting, Sampling
from vllama.dialects.blocks import BlockWriter
from vllama.dialects.openai.extras import Extras
from vllama.engines.base import Mode
from vllama.errors import BadRequest, CapabilityMissing, ModelNotFound
from vllama.http.request import Request
from vllama.models.types import Capability
from vllama.relay.relay import Relay
from vllama.routes.affinity import hash_messages
from vllama.routes.catalog import Entry
from vllama.routes.chat_pipeline import add_own_messages, prepare_turn
from vllama.routes.inference import make_need, run_relay, with_lease
from vllama.routes.prompt import make_dropped_header
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


IGNORED_HEADER = "x-vllama-ignored"
TRUNCATE_HEADER = b"x-vllama-truncate"
MAX_NAMED = 10
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


async def find_chat_model(gateway: Gateway, name: str) -> Entry:
    """Return the model, which must be one that chats. Raises ModelNotFound, CapabilityMissing."""
    entry = await find_v1_model(gateway, name)
    if Capability.COMPLETION not in entry.info.capabilities:
        raise CapabilityMissing(f'"{name}" does not support chat')
    return entry


def complete_chat(entry: Entry, chat: dict[str, Any], extras: Extras) -> dict[str, Any]:
    """Complete a chat request with what belongs to the model: its own turns, its sampling.

    What the model cannot do about thinking is left out in silence.
    """
    defaults, _ = entry.options(extras.options)
    out = {"temperature": defaults.temperature, "top_p": defaults.top_p, **chat}
    out = add_own_messages(out, entry.bundle)
    if Capability.THINKING not in entry.info.capabilities:
        out.pop("reasoning_effort", None)
    return out


async def relay_blocks(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    chat: dict[str, Any],
    make: Callable[[ReplyOptions], BlockWriter],
    *,
    extras: Extras,
    truncate: bool = False,
    ignored: Sequence[str] = (),
) -> None:
    """Serve a chat request in OpenAI's form with the writer that `make` builds.

    `truncate`: what is too long may be cut, unless the request says otherwise.
    """
    defaults, load = entry.options(extras.options)
    fitting = make_fitting(request, extras, defaults, truncate=truncate)

    async def use(lease: Lease, upstream: Upstream) -> None:
        traits = lease.traits
        body, sampling, stops = chat, defaults, None
        if (stop := chat.get("stop")) and not traits.names_stop:  # it must be known which it was
            body = {name: value for name, value in chat.items() if name != "stop"}
            sampling = msgspec.structs.replace(defaults, stop=())
            stops = StopFilter(stop, cuts=True)
        turn = await prepare_turn(
            entry, body, gateway.renderer, upstream, traits, defaults=sampling, fitting=fitting
        )
        headers = make_ignored_header(ignored) | make_dropped_header(turn.prompt)
        reply = turn.reply(make(turn.options), stops=stops)
        relay = Relay(request, reply, whole=not turn.options.stream, headers=headers)
        await run_relay(gateway, request, entry.bundle, relay, upstream, turn.call)

    need, prefix = make_need(load, Mode.CHAT), hash_messages(chat.get("messages"))
    await with_lease(gateway, request, entry.bundle, need, extras.keep_alive, use, prefix)


def make_seed(request: Request) -> str:
    """Return 24 hexadecimal digits that are this request's own."""
    return hashlib.blake2b(request.number.encode(), digest_size=12).hexdigest()


async def find_v1_model(gateway: Gateway, name: object) -> Entry:
    """Return the model that a body names. Raises BadRequest, ModelNotFound."""
    if not isinstance(name, str) or not name:
        raise BadRequest("you must provide a model parameter")
    try:
        return await gateway.catalog.find(name)
    except ModelNotFound as error:
        raise ModelNotFound(name, message=f"model '{name}' not found") from error


def make_fitting(
    request: Request, extras: Extras, sampling: Sampling, *, truncate: bool = True
) -> Fitting:
    """Return what may be done so that a request fits its context; `truncate` is the default."""
    return Fitting(
        truncate=read_truncate(request, extras, default=truncate),
        shift=extras.shift,
        num_keep=sampling.num_keep,
    )


def read_truncate(request: Request, extras: Extras, *, default: bool) -> bool:
    """Tell whether what is too long may be cut: the body's word, else the header's, else `default`.

    The header is for clients that cannot add a field. Raises BadRequest.
    """
    if extras.truncate is not None:
        return extras.truncate
    if TRUNCATE_HEADER not in request.headers:
        return default
    said = request.header(TRUNCATE_HEADER).strip().lower()
    if said not in ("", "true", "false"):
        raise BadRequest(f"cannot read header 'x-vllama-truncate: {said[:80]}': not true or false")
    return said == "true" if said else default


def make_ignored_header(names: Sequence[str]) -> dict[str, str]:
    """Return the header that names what had no effect: a few, with nothing that ends a line."""
    shown = ", ".join(_UNSAFE.sub("_", name) for name in names[:MAX_NAMED])
    return {IGNORED_HEADER: shown} if names else {}
