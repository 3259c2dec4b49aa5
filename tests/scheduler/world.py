"""Doubles of what the scheduler asks of the world: gated processes, a planner, memory."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from inspect import Signature, signature
from pathlib import Path

from tests.facts import INFO, MIB, bundle, facts
from tests.loops import in_loop as in_loop
from tests.manual_clock import ManualClock
from vllama.base.errors import Busy, EngineCrashed, EngineStartFailed, NoPlan
from vllama.chat.engine.traits import Traits
from vllama.engines.base import Memory
from vllama.net.upstream.connection import Progress
from vllama.plan.choose import make_plan
from vllama.plan.types import Need
from vllama.scheduler.hooks import Hooks, Limits, Measured, save_nothing
from vllama.scheduler.scheduler import Scheduler
from vllama.supervise.spec import Diagnosis, Endpoint, State
from vllama.supervise.tree import Footprint, TreeWork

LIMIT_S = 240.0


class GatedProcess:
    """A process that becomes ready, crashes or fails when the test says so."""

    def __init__(self, plan, number, size=0):
        self.plan = plan
        self.number = number
        self.size = size
        self.state = State.STOPPED
        self.attempts = ()
        self.pid = None
        self.endpoint = None
        self.stops = 0
        self.alive = True
        self.done = TreeWork()
        self.last_diagnosis = None
        self.causes = []
        self._gate = asyncio.Event()
        self._over = asyncio.Event()
        self._changed = bool
        self.error = None
        self.others = ()  # further endpoints that serve
        self.rest = None  # what is left of its tree, if it has ended unseen

    def open(self):
        """Become ready."""
        self.endpoint = Endpoint(port=self.number)
        self._enter(State.READY)
        self._gate.set()

    def crash(self):
        """End unasked; a restart is under way."""
        self._gate.clear()
        self.endpoint = None
        self._enter(State.BACKOFF)
        if not self._over.is_set():
            self._enter(State.STARTING)

    def fail(self, error):
        """End for good."""
        self.error, self.endpoint = error, None
        self._enter(State.FAILED)
        self._gate.set()
        self._over.set()

    def _enter(self, state):
        self.state = state
        self._changed()

    @property
    def endpoints(self):
        return (self.endpoint, *self.others) if self.endpoint else ()

    @property
    def parts(self):
        return (self,)

    def subscribe(self, changed):
        self._changed = changed

    def report_unreachable(self, endpoint):
        self.unreachable = endpoint

    def declare_unhealthy(self, endpoint, cause):
        self.causes.append(cause)
        self.last_diagnosis = Diagnosis(cause=cause)
        self.crash()

    def find_unhealthy_cause(self, endpoint):
        return None

    async def check_health(self, endpoint, limit_s):
        return self.alive

    def measure_activity(self):
        return self.done

    def output(self):
        return None

    async def run(self):
        self.state = State.STARTING if self.state is State.STOPPED else self.state
        await self._over.wait()

    async def ensure_ready(self):
        await self._gate.wait()
        if self.error:
            raise self.error
        return self.endpoint

    async def stop(self, grace=None):
        self.stops += 1
        if self.state is not State.FAILED:
            self.state = State.STOPPED
        self.endpoint = None
        self.error = self.error or Busy("cannot use it: it was stopped")
        self._gate.set()
        self._over.set()

    @property
    def holds(self):
        """What it takes of the machine's memory now."""
        return self.size if self.state is State.READY else 0

    def measure_footprint(self):
        if self.rest is not None:
            return Footprint(ram_bytes=self.rest, whole=False)
        return Footprint(ram_bytes=self.holds)


class GatedSleeper:
    """Sleep and wake that take no time, and may fail."""

    def __init__(self, world, plan):
        self.world, self.plan = world, plan
        self.asleep = set()
        self.wakes = True
        self.at_sleep = self.at_wake = None

    async def sleep(self, endpoint):
        if self.at_sleep:
            self.at_sleep()
            await settle()
            return False
        self.asleep.add(endpoint)
        return True

    async def wake(self, endpoint):
        if self.at_wake:
            at_wake, self.at_wake = self.at_wake, None
            at_wake()
            return False
        self.asleep.discard(endpoint)
        return self.wakes


class World:
    """A scheduler with everything around it in the test's hands.

    `free` is what the machine has when nothing is loaded; what is loaded is taken from it.
    """

    def __init__(
        self, *, max_loaded=3, free=10_000 * MIB, slots=1, size=None, sleeps=False, **limits
    ):
        self.clock = ManualClock()
        self.free = free
        self.size = size  # as planned
        self.true_size = None  # as measured, if that is another
        self.slots = slots
        self.sleeps = sleeps
        self.sleepers = {}
        self.processes = []
        self.auto_open = True
        self.plan_error = None
        self.lagging = 0  # memory of ended processes that is not back yet
        self.remembered = []
        self.answers = {}
        self.cut = []
        self.placed = None
        self.carried = []  # saved slots, and the number of the process that has got them
        self.hooks = Hooks(
            plan=self.plan,
            start=self.start,
            traits=self.traits,
            needs=self.needs,
            measure=self.measure,
            read_load=lambda plan, process: self.placed,
            record_memory=self.remember,
            replan=self.replan,
            shrink=self.shrink,
            report_progress=lambda plan, progress: None,
            report_load=lambda plan, again: None,
            read_progress=lambda endpoint: self.answers.get(endpoint.port, {}),
            abort_answers=lambda endpoint, cause, _: self.cut.append((endpoint.port, cause)),
            probe=self.probe,
            find_trouble=lambda endpoint: "",
            make_sleeper=self.sleeper,
            on_instance_end=lambda: None,
            before_end=save_nothing,
            save_slots=self.save_slots,
            restore_slots=self.restore_slots,
        )
        limits = {"retry_room_s": 0.001, "hang_s": float("inf"), **limits}
        self.limits = Limits(max_loaded=max_loaded, **limits)
        self.scheduler = Scheduler(self.hooks, self.limits, self.clock)

    async def plan(self, wanted, need):
        if self.plan_error:
            raise self.plan_error
        plan = make_plan(facts(), wanted, INFO, need)
        if self.size is not None:
            memory = Memory(
                weights_bytes=self.size, kv_bytes=0, compute_bytes=0, fixed_bytes=0,
                on_gpu=self.sleeps,
            )  # fmt: skip
            plan = replace(plan, memory=memory)
        return plan

    async def replan(self, wanted, need, failed):
        raise EngineStartFailed(failed[0].message, hint=failed[0].diagnosis.hint)

    async def shrink(self, plan, need, room):
        raise NoPlan("nothing is smaller")

    async def save_slots(self, plan, traits, endpoint):
        path = Path(f"slots of {endpoint.port}")
        self.carried.append((str(path), None))
        return [path]

    async def restore_slots(self, plan, traits, endpoint, files):
        self.carried[-1] = (str(*files), endpoint.port)

    async def probe(self, endpoint, model, mode):
        return None

    def needs(self, plan):
        return {"gpu0" if plan.memory.on_gpu else "ram": plan.memory.total_bytes}

    async def measure(self, processes, gpus):
        pool = "gpu0" if self.sleeps else "ram"
        holds, ended = {}, set()
        for key, process in processes.items():
            asleep = any(process.endpoint in item.asleep for item in self.sleepers.values())
            footprint = process.measure_footprint()
            holds[key] = {"ram" if asleep else pool: footprint.ram_bytes}
            if not footprint.whole:
                ended.add(key)
        taken = sum(held.get(pool, 0) for held in holds.values()) + self.lagging
        free = {"ram": 10**12, pool: self.free - taken}
        return Measured(free=free, holds=holds, ended=frozenset(ended))

    def start(self, plan):
        size = self.true_size or plan.memory.total_bytes
        process = GatedProcess(plan, len(self.processes) + 1, size)
        self.processes.append(process)
        if self.auto_open:
            process.open()
        return process

    async def remember(self, plan, held):
        self.remembered.append((plan.bundle.name, held))

    def traits(self, plan):
        return Traits(context_length=plan.settings.context_length, max_concurrency=self.slots)

    def sleeper(self, plan):
        if not self.sleeps:
            return None
        return self.sleepers.setdefault(plan.bundle.name, GatedSleeper(self, plan))

    def answer(self, process, *answers):
        """Say how far the answers of a process are: (begun, mark) pairs."""
        self.answers[process.number] = {n: Progress(*pair) for n, pair in enumerate(answers)}

    @asynccontextmanager
    async def running(self):
        """Run the scheduler; nothing may be left when it ends."""
        task = asyncio.ensure_future(self.scheduler.run())
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(LIMIT_S):
                yield self.scheduler
        finally:
            task.cancel()
            await asyncio.wait({task})
            for process in self.processes:
                assert process.stops or process.state is State.FAILED, "a process was left running"
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            assert not rest, f"tasks left: {rest}"


def in_world(kind=World, **settings):
    """Run an async test that gets a world, made with `settings`, and its running scheduler."""

    def decorate(test):
        @wraps(test)
        def run(*args, **kwargs):
            asyncio.run(run_within(*args, **kwargs))

        async def run_within(*args, **kwargs):
            world = kind(**settings)
            async with world.running() as scheduler:
                await test(world, scheduler, *args, **kwargs)

        _, _, *fixtures = signature(test).parameters.values()
        run.__signature__ = Signature(fixtures)  # of the others pytest knows nothing
        return run

    return decorate


async def reach(condition):
    """Let things happen until they have."""
    while not condition():  # noqa: ASYNC110 (an event for everything that may be waited for?)
        await asyncio.sleep(0.001)


async def settle():
    """Let everything that can run now run."""
    for _ in range(40):
        await asyncio.sleep(0)


def model(name):
    """Return a bundle with a path of its own."""
    from pathlib import Path

    return bundle(f"{name}:latest", path=Path(f"/models/{name}.gguf"))


async def as_time_passes(world, work):
    """Await something for which time has to pass."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0.001)
        world.clock.advance(0.1)
    return await task


async def use(scheduler, name="m", keep_alive_s=None):
    """Ask for a model and give it back."""
    scheduler.release(await scheduler.acquire(model(name), Need(), keep_alive_s))


def request(scheduler, name="m", need=Need()):  # noqa: B008 (frozen)
    """Begin to ask for a model; return the task, which gets the lease."""
    return asyncio.ensure_future(scheduler.acquire(model(name), need, None))


def phases(scheduler):
    """Return the state of each model that is loaded."""
    return {view.name.removesuffix(":latest"): view.state for view in scheduler.list_views()}


CRASHED = EngineCrashed("cannot serve 'm': it crashed too often")
NOT_STARTED = EngineStartFailed("cannot start 'm': the file is damaged")
