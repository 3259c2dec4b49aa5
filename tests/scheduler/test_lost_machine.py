"""An engine that has lost a machine is not restarted by its plan: the model is planned anew."""

import asyncio
from pathlib import Path

import pytest

from tests.scheduler.world import in_world, model, reach, request, settle
from vllama.plan.types import Need
from vllama.supervise.spec import Attempt, Diagnosis, Fault

CHAT = Need()


def crash(world, fault):
    """End the process unasked, as its supervisor reports it."""
    process = world.processes[-1]
    process.last_diagnosis = Diagnosis(cause="it lost RPC server a:1", fault=fault)
    process.attempts = (Attempt(number=1, started_s=0.0, log_path=Path(), ended_s=1.0),)
    process.crash()


@pytest.mark.parametrize("first", ["crash", "renew"])
@in_world()
async def test_running_and_waiting_requests_get_the_next_plan(world, scheduler, first):
    lease = await request(scheduler)
    waits = request(scheduler)
    await settle()
    if first == "crash":  # the supervisor may hear of it before or after the response
        crash(world, Fault.REMOTE)
        again = asyncio.ensure_future(scheduler.renew(lease, model("m"), CHAT, None))
    else:
        world.processes[0].crash()  # of which the cause is still to be read
        again = asyncio.ensure_future(scheduler.renew(lease, model("m"), CHAT, None))
        await settle()
        crash(world, Fault.REMOTE)
    lease = await again
    assert lease.endpoint.port == 2 and world.processes[0].stops
    assert not waits.done()  # it had its turn
    scheduler.release(lease)
    lease = await waits
    assert lease.endpoint.port == 2
    scheduler.release(lease)
    assert not scheduler.list_failures()


@in_world()
async def test_an_idle_model_is_loaded_again(world, scheduler):
    scheduler.release(await request(scheduler))
    crash(world, Fault.REMOTE)
    await reach(lambda: len(world.processes) == 2 and world.processes[0].stops)
    scheduler.release(await request(scheduler))


@in_world()
async def test_other_crashes_are_restarted(world, scheduler):
    lease = await request(scheduler)
    crash(world, None)
    again = asyncio.ensure_future(scheduler.renew(lease, model("m"), CHAT, None))
    await settle()
    assert len(world.processes) == 1 and not again.done()
    world.processes[0].open()
    scheduler.release(await again)
