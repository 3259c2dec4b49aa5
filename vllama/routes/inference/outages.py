"""What clients are told of a model whose server elsewhere does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.base import executors
from vllama.base.errors import NoPlan, VllamaError
from vllama.engines.capabilities import Attachable

if TYPE_CHECKING:
    from vllama.models.types import Bundle
    from vllama.routes.context import Gateway
    from vllama.supervise.spec import Endpoint


def list_servers(gateway: Gateway, bundle: Bundle) -> tuple[Endpoint, ...]:
    """Return the endpoints that have a model of an upstream."""
    engines = gateway.facts.found.engines.values()
    attachable = (engine for engine in engines if isinstance(engine, Attachable))
    return tuple(each for engine in attachable for each in engine.attach(bundle)[0])


async def explain_refusal(gateway: Gateway, bundle: Bundle, error: VllamaError) -> VllamaError:
    """Return why a model on this disk is not served: there is no plan, or its upstream is down.

    While that upstream answers, nobody misses an engine here.
    """
    if not isinstance(error, NoPlan):
        return error
    stored = gateway.catalog.library.stored
    model = await executors.disk.run(stored.find_yielding, bundle.name)
    if model is None:
        return error
    outage = gateway.watch.find_outage(list_servers(gateway, model))
    outage.message += f"; and here: {error.message}"
    return outage
