"""Routes that only some engines have: which engine here has one, and its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.chat.engine.traits import Traits
from vllama.chat.request import Call
from vllama.dialects.errors import clean_engine_error
from vllama.engines.base import Mode, Settings
from vllama.models.types import Bundle, Capability
from vllama.net.upstream.pool import Upstream
from vllama.observe.tracing.current import end_stage
from vllama.plan.types import Need
from vllama.routes.catalog import Entry
from vllama.routes.inference.lease import NotSupported, make_need

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


def list_traits(gateway: Gateway, bundle: Bundle, mode: Mode) -> list[Traits]:
    """Return what the engines here would offer of a model: no model is loaded to say no."""
    found = gateway.facts.found
    settings = Settings(mode=mode, alias=bundle.name, context_length=1)
    return [
        found.engines[name].traits(bundle, settings)
        for name in found.installations
        if bundle.format in found.engines[name].formats
    ]


async def fetch_or_refuse(upstream: Upstream, call: Call, what: str) -> bytes:
    """Return an engine's answer to a route that it may lack. Raises NotSupported for "cannot what".

    A server elsewhere shows what it has only when it is asked.
    """
    end_stage()
    answer = await upstream.fetch(call)
    if answer.status in (404, 405, 501):
        raise NotSupported(f"cannot {what}: its engine has no such route, or not for this model")
    if answer.status != 200:
        raise clean_engine_error(answer.status, answer.body, answer.headers)
    return answer.body


def make_need_of_entry(entry: Entry) -> Need:
    """Return what the model is loaded for: vectors if it makes nothing else."""
    _, load = entry.options({})
    chats = Capability.COMPLETION in entry.info.capabilities
    return make_need(load, Mode.CHAT if chats else Mode.EMBED)
