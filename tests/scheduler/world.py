"""Doubles of what the scheduler asks of the world: gated processes, a planner, memory."""

import asyncio
from contextlib import asynccontextmanager

from tests.facts import INFO, MIB, bundle, facts
from vllama.clock import ManualClock
from vllama.errors import EngineCrashed, EngineStartFailed
from vllama.plan.choose import make_plan
from vllama.scheduler.scheduler import Scheduler
from vllama.scheduler.table import Limits, Ports
from vllama.supervise.spec import Endpoint, State
from vllama.translate.traits import Traits

LIMIT_S = 10.0


class GatedProcess:
    """A process that becomes ready, crashes or fails when the test says so."""

    def __init__(self, plan, number):
        self.plan = plan
        self.number = number
        self.state = State.STOPPED
        self.attempts = ()
        self.pid = None
        self.endpoint = None
        self.stops = 0
        self.rss = 0
        self._gate = asyncio.Event()
        self._over = asyncio.Event()
        self.error = None

    def open(self):
        """Become ready."""
        self.state = State.READY
        self.endpoint = Endpoint(port=self.number)
        self._gate.set()

    def crash(self):
        """End unasked; a restart is under way."""
        self.state = State.STARTING
        self._gate.clear()

    def fail(self, error):
        """End for good."""
        self.state, self.error = State.FAILED, error
        self._gate.set()
        self._over.set()

    @property
    def endpoints(self):
        return (self.endpoint,) if self.endpoint else ()

    def suspect(self, endpoint):
        self.suspected = endpoint

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
        self._over.set()

    def descendants_rss_bytes(self):
        return self.rss


class World:
    """A scheduler with everything around it in the test's hands."""

    def __init__(
        self, *, max_loaded=3, free=10_000 * MIB, slots=1, max_queue=512, keep_alive_s=300.0
    ):
        self.clock = ManualClock()
        self.free = free
        self.slots = slots
        self.processes = []
        self.auto_open = True
        self.plan_error = None
        ports = Ports(
            plan=self.plan, start=self.start, traits=self.traits, free_bytes=self.free_bytes
        )
        limits = Limits(
            keep_alive_s=keep_alive_s,
            max_loaded=max_loaded,
            max_queue=max_queue,
            retry_room_s=0.001,
        )
        self.scheduler = Scheduler(ports, limits, self.clock)

    async def plan(self, wanted, need):
        if self.plan_error:
            raise self.plan_error
        return make_plan(facts(), wanted, INFO, need)

    async def free_bytes(self, plan):
        return self.free

    def start(self, plan):
        process = GatedProcess(plan, len(self.processes) + 1)
        self.processes.append(process)
        if self.auto_open:
            process.open()
        return process

    def traits(self, plan):
        return Traits(context_length=plan.settings.context_length, max_concurrency=self.slots)

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


async def settle():
    """Let everything that can run now run."""
    for _ in range(30):
        await asyncio.sleep(0)


def model(name):
    """Return a bundle with a path of its own."""
    from pathlib import Path

    return bundle(f"{name}:latest", path=Path(f"/models/{name}.gguf"))


CRASHED = EngineCrashed("cannot serve 'm': it crashed too often")
NOT_STARTED = EngineStartFailed("cannot start 'm': the file is damaged")
