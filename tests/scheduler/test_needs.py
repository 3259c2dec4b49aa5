"""Whatever a request needs and a plan gives: no request has a model loaded again twice."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace

import pytest

from tests.facts import make_need
from tests.scheduler.world import World, in_loop, model
from vllama.chat.request import LoadOptions
from vllama.engines.base import Mode
from vllama.models.types import Format
from vllama.plan.types import Need

CONTEXTS = (None, 4, 2048, 8192, 131_072, 131_073, 262_144, 1_000_000)


class Deaf(World):
    """A world whose plans give what the test says, whatever is needed."""

    def __init__(self, chance: random.Random, **settings) -> None:
        super().__init__(slots=2, **settings)
        self.chance = chance
        self.plans = 0
        self.most = 131_072

    async def plan(self, wanted, need):
        self.plans += 1
        chance = self.chance
        plan = await super().plan(wanted, Need(mode=need.mode))
        context = chance.choice((512, min(need.load.num_ctx or 4096, self.most)))
        settings = replace(
            plan.settings,
            context_length=context,
            logprobs=need.logprobs and chance.random() < 0.5,
            parallel=1,
        )
        bundle = wanted
        if chance.random() < 0.5:  # another form, though this one was asked for
            bundle = replace(wanted, path=wanted.path.with_name("other.gguf"))
        trained = chance.choice((None, self.most))
        return replace(
            plan,
            bundle=bundle,
            settings=settings,
            info=replace(plan.info, context_length=trained),
            most_parallel=chance.choice((None, 4)),
        )


def draw(chance: random.Random) -> tuple:
    """Return a model and a need by chance."""
    bundle = replace(model("m"), name=chance.choice(("m:latest", "m:q8_0")))
    need = Need(
        mode=chance.choice(list(Mode)),
        load=LoadOptions(
            num_ctx=chance.choice(CONTEXTS),
            num_gpu=chance.choice((None, 0, 99)),
            num_thread=chance.choice((None, 1, 64)),
        ),
        logprobs=chance.random() < 0.5,
        concurrent=chance.random() < 0.2,
    )
    return bundle, need


@pytest.mark.parametrize("seed", range(25))
@in_loop
async def test_each_request_has_a_model_loaded_at_most_once(seed):
    chance = random.Random(seed)
    world = Deaf(chance)
    async with world.running() as scheduler:
        for _ in range(20):
            bundle, need = draw(chance)
            for again in range(3):
                before = world.plans
                scheduler.release(await scheduler.acquire(bundle, need, None))
                assert world.plans - before <= (not again), (bundle.name, need)
                assert scheduler.touch(bundle, need, None)


@pytest.mark.parametrize("seed", range(10))
@in_loop
async def test_requests_that_need_different_things_at_once_are_all_answered(seed):
    chance = random.Random(seed)
    world = Deaf(chance, max_queue=100)
    drawn = [draw(chance) for _ in range(12)]

    async def ask(bundle, need):
        lease = await scheduler.acquire(bundle, need, None)
        await asyncio.sleep(0)
        scheduler.release(lease)

    async with world.running() as scheduler:
        await asyncio.gather(*itertools.starmap(ask, drawn))
        # each may have a load of its own, and each mode grows once
        assert world.plans <= 2 * len(drawn) + 4


@pytest.mark.parametrize("wanted", [131_073, 10**9])
@in_loop
async def test_a_server_elsewhere_is_never_loaded_again_for_what_it_cannot_give(wanted):
    world = Deaf(random.Random(1))
    bundle = replace(model("m"), format=Format.REMOTE)

    async def plan(bundle, need):
        world.plans += 1
        return await World.plan(world, model("m"), Need())

    world.hooks = replace(world.hooks, plan=plan)
    world.scheduler = type(world.scheduler)(world.hooks, world.limits, world.clock)
    async with world.running() as scheduler:
        running = await scheduler.acquire(bundle, Need(), None)
        # the answer that runs holds up nobody who wants more
        scheduler.release(await scheduler.acquire(bundle, make_need(num_ctx=wanted), None))
        scheduler.release(running)
        assert world.plans == 1
