"""A server that somebody else started: watched, never started or stopped.

Looks to its owner like a supervised process, so that the scheduler need not know the
difference. Several endpoints serve the same; one that fails is left out until it answers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from vllama.errors import CoolingDown
from vllama.supervise.logs import LogRing
from vllama.supervise.probe import http_status, trouble
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, Grace, State
from vllama.supervise.tree import Activity, Footprint

PROBE_TIMEOUT_S = 3.0
RETRY_S = 1.0


class AttachedProcess:
    """Endpoints elsewhere; `path` is asked to tell whether one answers (any status below 500)."""

    def __init__(self, name: str, endpoints: tuple[Endpoint, ...], path: str) -> None:
        self._name = name
        self._all = endpoints
        self._path = path
        self._up: tuple[Endpoint, ...] = ()
        self._ever_up = False
        self._state = State.STOPPED
        self._stop = asyncio.Event()
        self._look = asyncio.Event()
        self._looked = asyncio.Event()
        self._listener: Callable[[], object] = bool

    @property
    def state(self) -> State:
        """Ready while one endpoint answers; after that, backoff while none does."""
        return self._state

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Nothing is ever started."""
        return ()

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """Who does not answer; nothing is known of its inside."""
        down = [endpoint.url for endpoint in self._all if endpoint not in self._up]
        return Diagnosis(cause=f"no answer from {', '.join(down)}") if down else None

    @property
    def pid(self) -> int | None:
        """It is not our process."""
        return None

    @property
    def endpoint(self) -> Endpoint | None:
        """The first that answers."""
        return self._up[0] if self._up else None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All that answer."""
        return self._up

    async def run(self) -> None:
        """Look at all endpoints at first and whenever one failed, until stopped."""
        self._state = State.STARTING
        while not self._stop.is_set():
            await self._probe_all()
            self._looked.set()
            down = len(self._up) < len(self._all)
            try:
                async with asyncio.timeout(RETRY_S if down else None):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()
        self._state = State.STOPPED

    async def ensure_ready(self) -> Endpoint:
        """Return an endpoint that answers; raise CoolingDown if there is none."""
        if not self._up:
            self._looked.clear()
            self._look.set()
            await self._looked.wait()
        if not self._up:
            where = ", ".join(endpoint.url for endpoint in self._all)
            raise CoolingDown(
                f"cannot reach '{self._name}' at {where}",
                retry_after_s=RETRY_S,
                hint="start that server, or correct --upstream",
            )
        return self._up[0]

    def report_unreachable(self, endpoint: Endpoint) -> None:
        """Leave `endpoint` out until it answers a probe again."""
        self._is_up(tuple(item for item in self._up if item != endpoint))
        self._look.set()

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop looking; the server goes on."""
        self._stop.set()
        self._look.set()

    def measure_footprint(self) -> Footprint:
        """Return nothing: its memory is not ours to measure."""
        return Footprint()

    def measure_activity(self) -> Activity | None:
        """Return None: it is not our process."""
        return None

    def output(self) -> LogRing | None:
        """Return None: what it prints is not ours to read."""
        return None

    async def check_health(self, endpoint: Endpoint, limit_s: float) -> bool:
        """Ask it whether it lives."""
        status = await http_status(
            endpoint, self._path, timeout_s=limit_s, api_key=endpoint.api_key
        )
        return status is not None and status < 500

    @property
    def parts(self) -> tuple[AttachedProcess, ...]:
        """The processes of which it consists: itself."""
        return (self,)

    def subscribe(self, changed: Callable[[], object]) -> None:
        """Have `changed` called when endpoints come or go."""
        self._listener = changed

    def declare_unhealthy(self, endpoint: Endpoint, cause: str | None) -> str:
        """Hear that it is of no use: leave it out until it answers again."""
        self.report_unreachable(endpoint)
        return cause or f"{endpoint.url} says so"

    def find_unhealthy_cause(self, endpoint: Endpoint) -> str | None:
        """Return None: nobody here kills it."""
        return None

    async def _probe_all(self) -> None:
        answers = await asyncio.gather(
            *(http_status(item, self._path, timeout_s=PROBE_TIMEOUT_S, api_key=item.api_key)
              for item in self._all)
        )  # fmt: skip
        self._is_up(
            tuple(
                item
                for item, status in zip(self._all, answers, strict=True)
                if status is not None and status < 500
            )
        )

    def _is_up(self, up: tuple[Endpoint, ...]) -> None:
        """Take note of who answers."""
        self._up, self._ever_up = up, self._ever_up or bool(up)
        self._state = State.READY if up else State.BACKOFF if self._ever_up else State.STARTING
        self._listener()


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
