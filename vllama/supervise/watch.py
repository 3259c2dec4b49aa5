"""Servers that somebody else started: whether they answer, as of the last look.

Whoever wants to know asks `troubles`, which costs nothing: only `run` makes requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from vllama.supervise.probe import trouble
from vllama.supervise.spec import Endpoint

LOOK_S = 5.0
LIMIT_S = 3.0
NOT_YET = "it has not been asked yet"

log = logging.getLogger(__name__)


class Watch:
    """Asks `path` of each endpoint, again and again; the log has what changes."""

    def __init__(self, endpoints: Sequence[Endpoint], path: str) -> None:
        self._path = path
        self._troubles = dict.fromkeys(endpoints, NOT_YET)

    @property
    def troubles(self) -> dict[str, str]:
        """Why each of those cannot serve that cannot, by URL."""
        return {endpoint.url: why for endpoint, why in self._troubles.items() if why}

    @property
    def all_down(self) -> bool:
        """Whether there are any, and none can serve."""
        return bool(self._troubles) and all(self._troubles.values())

    async def run(self) -> None:
        """Look until cancelled."""
        while self._troubles:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Ask all of them once, side by side."""
        await asyncio.gather(*(self._look(endpoint) for endpoint in self._troubles))

    async def _look(self, endpoint: Endpoint) -> None:
        before = self._troubles[endpoint]
        why = self._troubles[endpoint] = await trouble(endpoint, self._path, timeout_s=LIMIT_S)
        if why == before:
            return
        if why:
            log.warning("the upstream at %s cannot serve: %s", endpoint.url, why)
        else:
            log.info("the upstream at %s answers", endpoint.url)
