"""Sleep and wake by the engine's own routes (`engines.base.Sleeping`)."""

from __future__ import annotations

from vllama.engines.base import Sleeping
from vllama.supervise.probe import http_status
from vllama.supervise.spec import Endpoint

# weights go to RAM and come back: seconds, minutes for the largest
LIMIT_S = 120.0


class EngineSleeper:
    """The `Sleeper` of an engine that has such routes."""

    def __init__(self, engine: Sleeping) -> None:
        self._engine = engine

    async def sleep(self, endpoint: Endpoint) -> bool:
        """Let it give its memory back; False if it did not say that it has."""
        return await self._ask(endpoint, *self._engine.sleep())

    async def wake(self, endpoint: Endpoint) -> bool:
        """Let it take its memory again; False if it did not say that it has."""
        return await self._ask(endpoint, *self._engine.wake())

    @staticmethod
    async def _ask(endpoint: Endpoint, method: str, path: str) -> bool:
        status = await http_status(
            endpoint,
            path,
            timeout_s=LIMIT_S,
            api_key=endpoint.api_key,
            post=b"" if method == "POST" else None,
        )
        return status == 200
