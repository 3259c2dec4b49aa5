"""The handlers that say whether the server lives, and which one it is.

Apart from the rest, because whoever starts a server asks here first: this imports next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama import __version__
from vllama.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway
    from vllama.gateway.http import Request

# what clients compare: as new as the contract that is implemented here
OLLAMA_VERSION = "0.34.0"


async def root(gateway: Gateway, request: Request) -> None:
    """Answer the health probe of many clients."""
    request.text(200, "Ollama is running")


async def version(gateway: Gateway, request: Request) -> None:
    """Report the version of the Ollama API that is spoken, and our own beside it."""
    request.json(200, {"version": OLLAMA_VERSION, "vllama": __version__})


async def live(gateway: Gateway, request: Request) -> None:
    """Say that the process answers: it need not be started again."""
    request.json(200, {"status": "ok"})


async def metrics(gateway: Gateway, request: Request) -> None:
    """Give the counters to Prometheus."""
    views = gateway.scheduler.views()
    loaded = sum(view.replicas > 0 for view in views)
    text = gateway.metrics.text(loaded=loaded, queued=sum(view.queued for view in views))
    request.respond(200, text, CONTENT_TYPE.encode())
