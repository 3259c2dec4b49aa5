"""The offers of the engines here, and of servers elsewhere, for a model; its purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.base import executors
from vllama.base.errors import CapabilityMissing, NoPlan, VllamaError
from vllama.chat.engine.refusals import clean_engine_error
from vllama.chat.engine.traits import Traits
from vllama.chat.request import Call
from vllama.engines.base import Mode, Settings
from vllama.models.lookup import Entry
from vllama.models.types import Bundle, Capability
from vllama.net.upstream.pool import Upstream
from vllama.observe.tracing.setup import end_stage
from vllama.plan.types import Need

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


def list_traits(gateway: Gateway, bundle: Bundle, mode: Mode) -> list[Traits]:
    """Return the offers of the engines here for a model: no model is loaded to say no."""
    found = gateway.facts.found
    settings = Settings(mode=mode, alias=bundle.name, context_length=1)
    return [
        found.engines[name].traits(bundle, settings)
        for name in found.installations
        if bundle.format in found.engines[name].formats
    ]


async def explain_refusal(gateway: Gateway, bundle: Bundle, error: VllamaError) -> VllamaError:
    """Return why a model on this disk is not served: there is no plan, or its upstream is down.

    While that upstream answers, nobody misses an engine here.
    """
    if not isinstance(error, NoPlan):
        return error
    model = await executors.disk.run(gateway.catalog.library.find_yielding, bundle.name)
    if model is None:
        return error
    outage = gateway.watch.find_outage(gateway.facts.found.find_servers(model)[0])
    outage.message += f"; and on this server: {error.message}"
    return outage


async def fetch_or_refuse(
    upstream: Upstream, call: Call, what: str, *, limit_s: float | None = None
) -> bytes:
    """Return an engine's answer to a route that it may lack. Raises NotSupported for "cannot what".

    A server elsewhere shows what it has only when it is asked.
    """
    end_stage()
    answer = await upstream.fetch(call, limit_s=limit_s)
    if answer.status in (404, 405, 501):
        raise NotSupported(f"cannot {what}: the engine does not support it for this model")
    if answer.status != 200:
        raise clean_engine_error(answer.status, answer.body, answer.headers)
    return answer.body


def make_need_of_entry(entry: Entry) -> Need:
    """Return the purpose that the model is loaded for: vectors if it makes nothing else."""
    _, load = entry.options({})
    chats = Capability.COMPLETION in entry.info.capabilities
    return Need(mode=Mode.CHAT if chats else Mode.EMBED, load=load)


class NotSupported(CapabilityMissing):
    """No engine here can do it."""

    status = 501
