"""Dependencies of the scheduler: its limits, the functions with which it acts, and the
protocols of the processes that these functions make.

A supervised process (`supervise.supervisor`) is a `Process`, and so is a set of replicas
(`replicas`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from vllama.base.errors import EngineError
from vllama.chat.engine.traits import Traits
from vllama.engines.base import Engine
from vllama.models.types import Bundle
from vllama.net.upstream.connection import Progress
from vllama.plan.ladder import Failed
from vllama.plan.types import Need, Plan
from vllama.scheduler.policy import Pools
from vllama.supervise.logs import LogRing
from vllama.supervise.probe import http_status
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, Grace, State
from vllama.supervise.tree import Footprint, TreeWork

# the weights move between GPU and RAM: seconds, or minutes for the largest models
SLEEP_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits and times of the scheduler."""

    keep_alive_s: float = 300.0  # of a model that has none of its own; infinite: never unload
    max_loaded: int = 3
    max_queue: int = 512  # for each model
    retry_room_s: float = 0.5  # how often memory is measured while loads are pending
    settle_s: float = 5.0  # the system may take so long to return an ended process's memory
    return_s: float = 30.0  # for so long nothing is refused that it would be enough for
    # a busy model serves at least this long, and as long as its load took, before it is retired
    turn_s: float = 5.0
    sleep_s: float = 3600.0  # after which a sleeping model is unloaded
    cool_down_s: float = 15.0  # for which a model that has used up its restarts is refused
    hang_s: float = 30.0  # an engine may be silent this long in an answer; infinite: no limit


async def save_nothing(endpoints: Sequence[Endpoint]) -> None:
    """Kill engines at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Free memory less the reserve, and what each process holds, both measured together.

    The keys in `ended` are those of process trees whose engine has ended, so that only a part is
    left. Their memory says nothing about the next start. `returning` becomes free soon.
    """

    free: Pools
    holds: Mapping[Hashable, Pools] = field(default_factory=dict)
    ended: frozenset[Hashable] = frozenset()
    returning: Pools = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Placement of a model, as its engine reported after the load, and differences from the plan.

    `vram_bytes` are on GPUs, also on those that only the engine knows.
    """

    text: str
    vram_bytes: int
    pools: Pools
    trouble: Diagnosis | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBytes:
    """Bytes of a model's files that its engine, started at a Unix time, has read so far."""

    started_s: float
    completed_bytes: int = 0
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Dependencies of the scheduler, passed in so that tests can control each part.

    Plans: `plan` makes a plan, which may take a while; `replan` makes the next one after starts
    that failed, and `shrink` one for the bytes that are to be had of each pool; both raise if there
    is none. `traits` returns the behavior of a plan's engine.

    Processes: `start` makes a process that is not running yet; `make_sleeper` returns None for an
    engine that cannot sleep; `report_progress` is called again and again during a load, and
    `report_load` when a model is ready, with True if its process had ended and was started again;
    `before_end` before the processes of an instance are stopped, `on_instance_end` after its end.
    `save_slots` saves conversations in files for the next engine, `restore_slots` restores them.
    `read_load` returns where a loaded model lies, None if its engine does not say.

    Memory: `needs` returns the estimate by pool; `measure` measures, GPUs only if its second
    argument is true; `record_memory` stores the peak of a process for later loads.

    Answers: `read_progress` returns the progress of the answers from an endpoint, by numbers;
    `abort_answers` ends these, or all (None), with a cause.

    Endpoints: `probe` returns why one that has failed still cannot answer for a model of that name,
    in a mode; `find_trouble` what its health checks have found.
    """

    plan: Callable[[Bundle, Need], Awaitable[Plan]]
    start: Callable[[Plan], Process]
    traits: Callable[[Plan], Traits]
    needs: Callable[[Plan], Pools]
    measure: Callable[[Mapping[Hashable, Process], bool], Awaitable[Measured]]
    record_memory: Callable[[Plan, Pools], Awaitable[None]]
    replan: Callable[[Bundle, Need, Sequence[Failed]], Awaitable[Plan]]
    shrink: Callable[[Plan, Need, Pools], Awaitable[Plan]]
    report_progress: Callable[[Plan, LoadedBytes], None]
    report_load: Callable[[Plan, bool], None]
    read_load: Callable[[Plan, Process], Placed | None]
    read_progress: Callable[[Endpoint], Mapping[int, Progress]]
    abort_answers: Callable[[Endpoint, str, Collection[int] | None], None]
    probe: Callable[[Endpoint, str, str], Awaitable[EngineError | None]]
    find_trouble: Callable[[Endpoint], str]
    make_sleeper: Callable[[Plan], Sleeper | None]
    on_instance_end: Callable[[], object]
    before_end: Callable[[Sequence[Endpoint]], Awaitable[None]]
    save_slots: Callable[[Plan, Traits, Endpoint], Awaitable[Sequence[Path]]]
    restore_slots: Callable[[Plan, Traits, Endpoint, Sequence[Path]], Awaitable[None]]


class Part(Protocol):
    """One of the processes that make up a `Process`."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Endpoints that can be reached now."""

    def measure_activity(self) -> TreeWork | None:
        """Return its CPU time and reads so far, None if unknown; blocks for milliseconds."""

    def output(self) -> LogRing | None:
        """Return its latest log lines, None if they cannot be read."""

    async def check_health(self, endpoint: Endpoint, limit_s: float) -> bool:
        """Probe its health; return whether it answered well within `limit_s` seconds."""

    def note_success(self) -> None:
        """Note a whole response: its crashes before are no reason to give it up."""

    def report_unreachable(self, endpoint: Endpoint) -> None:
        """Report that `endpoint` could not be reached."""

    def declare_unhealthy(self, endpoint: Endpoint, cause: str | None) -> str:
        """End and restart it as after a crash, because it cannot serve. Returns the cause.

        With `cause` None, the engine itself has reported a fatal error, and the cause is looked for
        in its log.
        """

    def find_unhealthy_cause(self, endpoint: Endpoint) -> str | None:
        """Return the cause if the engine at `endpoint` was declared unhealthy, else None."""


class Process(Protocol):
    """Interface of a supervised process for the scheduler."""

    @property
    def state(self) -> State:
        """Current state."""

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Record of all starts."""

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """Why it last crashed."""

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None while it does not run."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints that can be reached now; they change with every restart."""

    @property
    def parts(self) -> Sequence[Part]:
        """The replicas, or only the process itself if there are none."""

    def subscribe(self, changed: Callable[[], object]) -> None:
        """Call `changed` after every change of state."""

    async def run(self) -> None:
        """Own the process until it is stopped or failed for good."""

    async def ensure_ready(self) -> Endpoint:
        """Wait until it serves. Raises EngineError or Busy."""

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop the whole tree; returns when it is gone."""

    def measure_footprint(self) -> Footprint:
        """Measure the memory of its tree; blocks for milliseconds."""


class Sleeper:
    """Sleep and wake-up of an engine that has routes for them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def sleep(self, endpoint: Endpoint) -> bool:
        """Make the engine release its memory; return whether it confirmed that."""
        return await self._request(endpoint, *self._engine.sleep())

    async def wake(self, endpoint: Endpoint) -> bool:
        """Make the engine load its memory again; return whether it confirmed that."""
        return await self._request(endpoint, *self._engine.wake())

    @staticmethod
    async def _request(endpoint: Endpoint, method: str, path: str) -> bool:
        status = await http_status(
            endpoint,
            path,
            timeout_s=SLEEP_LIMIT_S,
            api_key=endpoint.api_key,
            post=b"" if method == "POST" else None,
        )
        return status == 200
