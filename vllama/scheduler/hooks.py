"""What the scheduler is given: its limits, and the functions with which it acts on the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from vllama.chat.engine.traits import Traits
from vllama.errors import EngineStartFailed, VllamaError
from vllama.hardware.cpu import CpuTime
from vllama.models.types import Bundle
from vllama.plan.ladder import Failed
from vllama.plan.types import Need, Plan
from vllama.scheduler.memory import Measurable, Measured
from vllama.scheduler.policy import Pools
from vllama.scheduler.process import Process, Sleeper
from vllama.supervise.spec import Endpoint
from vllama.upstream.connection import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings of the scheduler; times are in seconds.

    `keep_alive_s` is the default, infinite for ever. `max_queue` is per model. While loads are
    pending, memory is measured every `retry_room_s`. The system may take `settle_s` to return the
    memory of an ended process. A busy model serves for at least `turn_s`, and at least as long as
    its load took, before it is retired for another model. A sleeping model is unloaded after
    `sleep_s`. A model that has used up its restarts is refused for `cool_down_s`. `hang_s` is the
    time of the hang detector; infinite turns it off.
    """

    keep_alive_s: float = 300.0
    max_loaded: int = 3
    max_queue: int = 512
    retry_room_s: float = 0.5
    settle_s: float = 5.0
    turn_s: float = 5.0
    sleep_s: float = 3600.0
    cool_down_s: float = 15.0
    hang_s: float = 30.0


async def raise_first_failure(bundle: Bundle, need: Need, failed: Sequence[Failed]) -> Plan:
    """Offer no other plan: raise the error of the first."""
    raise EngineStartFailed(failed[0].message, hint=failed[0].diagnosis.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the scheduler needs from outside, passed in so that tests can control each part.

    Plans: `plan` makes a plan, which may take a while; `replan` makes the next one after starts
    that failed, or raises if none is left. `traits` returns the behaviour of a plan's engine.

    Processes: `start` makes a process that is not running yet; `make_sleeper` returns None for an
    engine that cannot sleep; `report_load` is called at the end of every load, with its error if it
    failed; `on_instance_end` after the end of an instance.

    Memory: `needs` returns the estimate by pool; `measure` measures, GPUs only if its second
    argument is true; `record_memory` stores the peak of a process for later loads.

    Answers: `read_progress` returns the progress of the answers from an endpoint; `abort_answers`
    ends them with a cause. `read_cpu_time` returns the CPU time of a process, by its id, and of the
    whole machine; None if unknown.
    """

    plan: Callable[[Bundle, Need], Awaitable[Plan]]
    start: Callable[[Plan], Process]
    traits: Callable[[Plan], Traits]
    needs: Callable[[Plan], Pools]
    measure: Callable[[Mapping[Hashable, Measurable], bool], Awaitable[Measured]]
    record_memory: Callable[[Plan, Pools], Awaitable[None]]
    replan: Callable[[Bundle, Need, Sequence[Failed]], Awaitable[Plan]] = raise_first_failure
    report_load: Callable[[Plan, VllamaError | None], None] = lambda plan, error: None
    read_progress: Callable[[Endpoint], Mapping[int, Progress]] = lambda endpoint: {}
    abort_answers: Callable[[Endpoint, str], None] = lambda endpoint, cause: None
    make_sleeper: Callable[[Plan], Sleeper | None] = lambda plan: None
    on_instance_end: Callable[[], object] = lambda: None
    read_cpu_time: Callable[[int], CpuTime | None] = lambda pid: None
