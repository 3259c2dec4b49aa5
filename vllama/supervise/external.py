"""External servers (`--upstream`): probed, but never started or stopped.

`AttachedProcess` has the interface of a supervised process, so that the scheduler need not know the
difference. It may have several equal endpoints. An endpoint that fails is not used until it answers
again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence

from vllama.base.clock import wait_for
from vllama.base.errors import CoolingDown
from vllama.supervise.logs import LogRing
from vllama.supervise.probe import http_status
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, Grace, State
from vllama.supervise.tree import Activity, Footprint

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 3.0
RETRY_S = 1.0


class AttachedProcess:
    """External endpoints. An endpoint is up if GET `path` has any status below 500."""

    def __init__(self, endpoints: tuple[Endpoint, ...], path: str) -> None:
        self._all = endpoints
        self._path = path
        self._up: tuple[Endpoint, ...] = ()
        self._down_since_s: float | None = None  # Unix time; None: it has never answered
        self._state = State.STOPPED
        self._stop = asyncio.Event()
        self._probe_wanted = asyncio.Event()
        self._probed = asyncio.Event()
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
        down = [endpoint for endpoint in self._all if endpoint not in self._up]
        return Diagnosis(cause=f"no answer from {name_upstreams(down)}") if down else None

    @property
    def pid(self) -> int | None:
        """None, because the process is not ours."""
        return None

    @property
    def endpoint(self) -> Endpoint | None:
        """The first endpoint that answers."""
        return self._up[0] if self._up else None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints that answer."""
        return self._up

    async def run(self) -> None:
        """Probe all endpoints, at first and whenever one has failed, until stopped."""
        self._state = State.STARTING
        while not self._stop.is_set():
            probes = (self.check_health(item, PROBE_TIMEOUT_S) for item in self._all)
            self._set_up(tuple(itertools.compress(self._all, await asyncio.gather(*probes))))
            self._probed.set()
            down = len(self._up) < len(self._all)
            await wait_for(self._probe_wanted, RETRY_S if down else math.inf)
            self._probe_wanted.clear()
        self._state = State.STOPPED

    async def ensure_ready(self) -> Endpoint:
        """Return an endpoint that answers. Raises CoolingDown if there is none."""
        if not self._up:
            self._probed.clear()
            self._probe_wanted.set()
            await self._probed.wait()
        if not self._up:
            raise make_outage(self._all, self._down_since_s)
        return self._up[0]

    def report_unreachable(self, endpoint: Endpoint) -> None:
        """Do not use `endpoint` until it answers a probe again."""
        self._set_up(tuple(item for item in self._up if item != endpoint))
        self._probe_wanted.set()

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop probing; the external server continues."""
        self._stop.set()
        self._probe_wanted.set()

    def measure_footprint(self) -> Footprint:
        """Return an empty footprint, because the memory cannot be measured."""
        return Footprint()

    def measure_activity(self) -> Activity | None:
        """Return None, because the process is not ours."""
        return None

    def output(self) -> LogRing | None:
        """Return None, because its log cannot be read."""
        return None

    async def check_health(self, endpoint: Endpoint, limit_s: float) -> bool:
        """Return whether it answers within `limit_s` with a status below 500."""
        path = endpoint.health_path or self._path
        status = await http_status(endpoint, path, timeout_s=limit_s, api_key=endpoint.api_key)
        return status is not None and status < 500

    @property
    def parts(self) -> tuple[AttachedProcess, ...]:
        """The process itself, since it has no replicas that can be told apart."""
        return (self,)

    def subscribe(self, changed: Callable[[], object]) -> None:
        """Call `changed` when endpoints come up or go down."""
        self._listener = changed

    def declare_unhealthy(self, endpoint: Endpoint, cause: str | None) -> str:
        """Do not use `endpoint` until it answers a probe again."""
        self.report_unreachable(endpoint)
        cause = cause or "it has reported a fatal error"
        log.warning("the upstream at %s is not used until it answers: %s", endpoint.url, cause)
        return cause

    def find_unhealthy_cause(self, endpoint: Endpoint) -> str | None:
        """Return None, because an external server is never killed."""
        return None

    def _set_up(self, up: tuple[Endpoint, ...]) -> None:
        """Set the endpoints that answer, and notify the listener if others answer than before.

        A probe that finds nothing new tells nobody: the listener asks for a probe itself.
        """
        before, self._up = self._up, up
        if before and not up:
            self._down_since_s = time.time()
        was_up = self._down_since_s is not None
        self._state = State.READY if up else State.BACKOFF if was_up else State.STARTING
        if up != before:
            self._listener()


def make_outage(endpoints: Sequence[Endpoint], since_s: float | None) -> CoolingDown:
    """Return the error of servers that do not answer; None: they have never answered."""
    local = time.localtime(since_s)
    since = "yet" if since_s is None else f"since {time.strftime('%Y-%m-%d %H:%M:%S', local)}"
    return CoolingDown(
        f"cannot reach {name_upstreams(endpoints)}: no answer {since}",
        retry_after_s=RETRY_S,
        hint="start that server, or correct its address in the settings",
    )


def name_upstreams(endpoints: Sequence[Endpoint]) -> str:
    """Return upstreams by their names; clients are told this, so addresses are left to the log."""
    return " or ".join(dict.fromkeys(each.title for each in endpoints))
