"""What the scheduler is given: its limits, and the functions with which it acts on the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from vllama.base.errors import EngineError, EngineStartFailed
from vllama.chat.engine.traits import Traits
from vllama.models.types import Bundle
from vllama.net.upstream.connection import Progress
from vllama.plan.ladder import Failed
from vllama.plan.types import Need, Plan
from vllama.scheduler.memory import Measured
from vllama.scheduler.policy import Pools
from vllama.scheduler.process import Process, Sleeper
from vllama.supervise.spec import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits and times of the scheduler."""

    keep_alive_s: float = 300.0  # of a model that has none of its own; infinite: never unload
    max_loaded: int = 3
    max_queue: int = 512  # for each model
    retry_room_s: float = 0.5  # how often memory is measured while loads are pending
    settle_s: float = 5.0  # the system may take so long to return an ended process's memory
    # a busy model serves at least this long, and as long as its load took, before it is retired
    turn_s: float = 5.0
    sleep_s: float = 3600.0  # after which a sleeping model is unloaded
    cool_down_s: float = 15.0  # for which a model that has used up its restarts is refused
    hang_s: float = 30.0  # an engine may be silent this long in an answer; infinite: no limit


async def raise_first_failure(bundle: Bundle, need: Need, failed: Sequence[Failed]) -> Plan:
    """Offer no other plan: raise the error of the first."""
    raise EngineStartFailed(failed[0].message, hint=failed[0].diagnosis.hint)


async def probe_nothing(endpoint: Endpoint, model: str, mode: str) -> EngineError | None:
    """Find nothing wrong."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the scheduler needs from outside, passed in so that tests can control each part.

    Plans: `plan` makes a plan, which may take a while; `replan` makes the next one after starts
    that failed, or raises if none is left. `traits` returns the behaviour of a plan's engine.

    Processes: `start` makes a process that is not running yet; `make_sleeper` returns None for an
    engine that cannot sleep; `report_load` is called when a model is ready, with True if its
    process had ended and was started again; `on_instance_end` after the end of an instance.

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
    replan: Callable[[Bundle, Need, Sequence[Failed]], Awaitable[Plan]] = raise_first_failure
    report_load: Callable[[Plan, bool], None] = lambda plan, again: None
    read_progress: Callable[[Endpoint], Mapping[int, Progress]] = lambda endpoint: {}
    abort_answers: Callable[[Endpoint, str, Collection[int] | None], None] = (
        lambda endpoint, cause, numbers: None
    )
    probe: Callable[[Endpoint, str, str], Awaitable[EngineError | None]] = probe_nothing
    find_trouble: Callable[[Endpoint], str] = lambda endpoint: ""
    make_sleeper: Callable[[Plan], Sleeper | None] = lambda plan: None
    on_instance_end: Callable[[], object] = lambda: None
