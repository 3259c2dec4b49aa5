"""The processes of an instance, as the scheduler sees them.

A supervised process (`supervise.supervisor`) is one, and so is a set of replicas (`replicas`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from vllama.supervise.logs import LogRing
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, Grace, State
from vllama.supervise.tree import Activity, Footprint


class Part(Protocol):
    """One of the processes that make up a `Process`."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Endpoints that can be reached now."""
        ...

    def measure_activity(self) -> Activity | None:
        """Return its CPU time and reads so far, None if unknown; blocks for milliseconds."""
        ...

    def output(self) -> LogRing | None:
        """Return its latest log lines, None if they cannot be read."""
        ...

    async def check_health(self, endpoint: Endpoint, limit_s: float) -> bool:
        """Probe its health; return whether it answered well within `limit_s` seconds."""
        ...

    def declare_unhealthy(self, endpoint: Endpoint, cause: str | None) -> str:
        """End and restart it as after a crash, because it cannot serve. Returns the cause.

        With `cause` None, the engine itself has reported a fatal error, and the cause is looked for
        in its log.
        """
        ...

    def find_unhealthy_cause(self, endpoint: Endpoint) -> str | None:
        """Return the cause if the engine at `endpoint` was declared unhealthy, else None."""
        ...


class Process(Protocol):
    """What the scheduler needs of a supervised process."""

    @property
    def state(self) -> State:
        """Current state."""
        ...

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Record of all starts."""
        ...

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """Why it last crashed."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None while it does not run."""
        ...

    @property
    def endpoint(self) -> Endpoint | None:
        """Endpoint of the current start; changes with every restart."""
        ...

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints that can be reached now; more than one for replicas."""
        ...

    @property
    def parts(self) -> Sequence[Part]:
        """The replicas, or only the process itself if there are none."""
        ...

    def subscribe(self, changed: Callable[[], object]) -> None:
        """Call `changed` after every change of state."""
        ...

    def report_unreachable(self, endpoint: Endpoint) -> None:
        """Report that `endpoint` could not be reached."""
        ...

    async def run(self) -> None:
        """Own the process until it is stopped or failed for good."""
        ...

    async def ensure_ready(self) -> Endpoint:
        """Wait until it serves. Raises EngineError or Busy."""
        ...

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop the whole tree; returns when it is gone."""
        ...

    def measure_footprint(self) -> Footprint:
        """Measure the memory of its tree; blocks for milliseconds."""
        ...


class Sleeper(Protocol):
    """How the engine at an endpoint is put to sleep and woken."""

    async def sleep(self, endpoint: Endpoint) -> bool:
        """Make the engine release its memory; return whether it did."""
        ...

    async def wake(self, endpoint: Endpoint) -> bool:
        """Make the engine load its memory again; return whether it did."""
        ...
