"""External servers (`--upstream`): monitored, but never started or stopped.

`AttachedProcess` has the interface of a supervised process, so that the scheduler need not know the
difference. It may have several equal endpoints. An endpoint that fails is not used until it answers
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from vllama.errors import CoolingDown
from vllama.supervise.logs import LogRing
from vllama.supervise.probe import find_trouble, http_status
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
        self._ever_up = False
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
            await self._probe_all()
            self._probed.set()
            down = len(self._up) < len(self._all)
            try:
                async with asyncio.timeout(RETRY_S if down else None):
                    await self._probe_wanted.wait()
            except TimeoutError:
                pass
            self._probe_wanted.clear()
        self._state = State.STOPPED

    async def ensure_ready(self) -> Endpoint:
        """Return an endpoint that answers. Raises CoolingDown if there is none."""
        if not self._up:
            self._probed.clear()
            self._probe_wanted.set()
            await self._probed.wait()
        if not self._up:
            raise CoolingDown(
                f"cannot reach {name_upstreams(self._all)}",
                retry_after_s=RETRY_S,
                hint="start that server, or correct its address in the settings",
            )
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
        status = await http_status(
            endpoint,
            endpoint.health_path or self._path,
            timeout_s=limit_s,
            api_key=endpoint.api_key,
        )
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

    async def _probe_all(self) -> None:
        answers = await asyncio.gather(
            *(
                http_status(
                    item,
                    item.health_path or self._path,
                    timeout_s=PROBE_TIMEOUT_S,
                    api_key=item.api_key,
                )
                for item in self._all
            )
        )
        self._set_up(
            tuple(
                item
                for item, status in zip(self._all, answers, strict=True)
                if status is not None and status < 500
            )
        )

    def _set_up(self, up: tuple[Endpoint, ...]) -> None:
        """Set the endpoints that answer, and notify the listener if others answer than before.

        A probe that finds nothing new tells nobody: the listener asks for a probe itself.
        """
        before, self._up, self._ever_up = self._up, up, self._ever_up or bool(up)
        self._state = State.READY if up else State.BACKOFF if self._ever_up else State.STARTING
        if up != before:
            self._listener()


def name_upstreams(endpoints: Sequence[Endpoint]) -> str:
    """Return upstreams by their names; clients are told this, so addresses are left to the log."""
    names = " or ".join(f"'{each.upstream}'" for each in endpoints if each.upstream)
    return f"the upstream {names}".rstrip()


CHECK_LIMIT_S = 3.0
NOT_YET = "it has not been checked yet"


class UpstreamMonitor:
    """Checks each endpoint at intervals, and logs changes."""

    def __init__(self, endpoints: Sequence[Endpoint], path: str) -> None:
        """Prepare; `path` is asked of those that have no path of their own."""
        self._path = path
        self._troubles = dict.fromkeys(endpoints, NOT_YET)
        self._replaced = asyncio.Event()

    def use(self, endpoints: Sequence[Endpoint], path: str) -> None:
        """Check other endpoints from now on."""
        self._path = path
        self._troubles = {each: self._troubles.get(each, NOT_YET) for each in endpoints}
        self._replaced.set()

    @property
    def troubles(self) -> dict[str, str]:
        """The reasons of the endpoints that cannot serve, by URL."""
        return {endpoint.url: why for endpoint, why in self._troubles.items() if why}

    def are_down(self, endpoints: Sequence[Endpoint]) -> bool:
        """Return whether all of `endpoints` were found unable to serve when last checked."""
        troubles = self.troubles
        return bool(endpoints) and all(
            troubles.get(each.url, NOT_YET) != NOT_YET for each in endpoints
        )

    @property
    def all_down(self) -> bool:
        """Whether there are endpoints that clients rely on, and none of them can serve."""
        needed = [why for endpoint, why in self._troubles.items() if not endpoint.is_spare]
        return bool(needed) and all(needed)

    @property
    def none_answers(self) -> bool:
        """Whether there are endpoints, and none of them can serve, whether relied on or not."""
        return bool(self._troubles) and all(self._troubles.values())

    async def run(self) -> None:
        """Check at intervals until cancelled."""
        while True:
            self._replaced.clear()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._watch(each)) for each in self._troubles]
                await self._replaced.wait()
                for task in tasks:
                    task.cancel()

    async def check(self) -> None:
        """Check all endpoints once, concurrently."""
        await asyncio.gather(*(self._check(endpoint) for endpoint in self._troubles))

    async def _watch(self, endpoint: Endpoint) -> None:
        while True:
            await self._check(endpoint)
            await asyncio.sleep(endpoint.health_interval_s)

    async def _check(self, endpoint: Endpoint) -> None:
        path = endpoint.health_path or self._path
        trouble = await find_trouble(endpoint, path, timeout_s=CHECK_LIMIT_S)
        before = self._troubles.get(endpoint)
        if before is None or trouble == before:
            return
        self._troubles[endpoint] = trouble
        if trouble:
            log.warning("the upstream at %s cannot serve: %s", endpoint.url, trouble)
        else:
            log.info("the upstream at %s answers", endpoint.url)
