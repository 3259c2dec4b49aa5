"""A model of external servers (`--upstream`): never started or stopped, only found up or down.

`AttachedProcess` has the interface of a supervised process, so that the scheduler need not know the
difference. It may have several equal endpoints; those that are down are not used.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

from vllama.base.clock import wait_for
from vllama.supervise.logs import LogRing
from vllama.supervise.probe import Down
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, Grace, State
from vllama.supervise.tree import Footprint, TreeWork
from vllama.targets.monitor import RETRY_S, UpstreamMonitor, name_upstreams

log = logging.getLogger(__name__)


class AttachedProcess:
    """The endpoints of a model; one that a request misses is down until a check finds it up."""

    def __init__(self, endpoints: tuple[Endpoint, ...], monitor: UpstreamMonitor) -> None:
        self._all = endpoints
        self._monitor = monitor
        self._up: tuple[Endpoint, ...] = ()
        self._state = State.STOPPED
        self._stop = asyncio.Event()
        self._check_wanted = asyncio.Event()
        self._listener: Callable[[], object] = bool

    @property
    def state(self) -> State:
        """Starting until an endpoint answers; then ready while one does, else backoff."""
        return self._state

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Empty, because nothing is ever started."""
        return ()

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """The endpoints that do not answer; the cause is unknown."""
        down = self._list_down()
        return Diagnosis(cause=f"no response from {name_upstreams(down)}") if down else None

    @property
    def pid(self) -> int | None:
        """None, because the process is not ours."""
        return None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints that answer."""
        return self._up

    async def run(self) -> None:
        """Check failed targets at first and until they are up again, until stopped."""
        self._state = State.STARTING
        while not self._stop.is_set():
            await self._check()
            await wait_for(self._check_wanted, RETRY_S if self._list_down() else math.inf)
            self._check_wanted.clear()
        self._state = State.STOPPED

    async def ensure_ready(self) -> Endpoint:
        """Return an endpoint that answers. Raises CoolingDown if there is none."""
        if not self._up:
            await self._check()
        if not self._up:
            raise self._monitor.find_outage(self._all)
        return self._up[0]

    def note_success(self) -> None:
        """Do nothing: it is never started."""

    def report_unreachable(self, endpoint: Endpoint) -> None:
        """Do not use `endpoint` until it answers a check again."""
        self._set_up([each for each in self._up if each != endpoint])
        self._check_wanted.set()

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop the checks; the external servers continue."""
        self._stop.set()
        self._check_wanted.set()

    def measure_footprint(self) -> Footprint:
        """Return an empty footprint, because the memory cannot be measured."""
        return Footprint()

    def measure_activity(self) -> TreeWork | None:
        """Return None, because the process is not ours."""
        return None

    def output(self) -> LogRing | None:
        """Return None, because its log cannot be read."""
        return None

    async def check_health(self, endpoint: Endpoint, limit_s: float) -> bool:
        """Return the monitor's findings; it checks often while answers are silent."""
        return self._monitor.is_up(endpoint)

    @property
    def parts(self) -> tuple[AttachedProcess, ...]:
        """The process itself, since it has no replicas that can be told apart."""
        return (self,)

    def subscribe(self, changed: Callable[[], object]) -> None:
        """Call `changed` when endpoints come up or go down."""
        self._listener = changed

    def declare_unhealthy(self, endpoint: Endpoint, cause: str | None) -> str:
        """Do not use `endpoint` until it answers a check again."""
        self.report_unreachable(endpoint)
        cause = cause or "it reported a fatal error"
        log.warning("upstream %s is not used until it responds: %s", endpoint.url, cause)
        return cause

    def find_unhealthy_cause(self, endpoint: Endpoint) -> str | None:
        """Return None, because an external server is never killed."""
        return None

    def _list_down(self) -> list[Endpoint]:
        return [endpoint for endpoint in self._all if endpoint not in self._up]

    async def _check(self) -> None:
        """Ask the monitor to check failed targets, and use recovered ones."""
        down = self._list_down()
        troubles = await self._monitor.check(down)
        found = [one for one, why in zip(down, troubles, strict=True) if not isinstance(why, Down)]
        self._set_up([one for one in self._all if one in self._up or one in found])

    def _set_up(self, up: Sequence[Endpoint]) -> None:
        """Use these endpoints, and notify the listener if they are others than before.

        A check that finds nothing new tells nobody: the listener asks for a check itself.
        """
        before, self._up = self._up, tuple(up)
        if self._up != before:
            self._state = State.READY if up else State.BACKOFF
            self._listener()
