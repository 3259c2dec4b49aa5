"""What settings of single models and of upstreams mean to the scheduler."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.scheduler.world import in_world, model, settle
from vllama.chat.engine.traits import Traits
from vllama.engines.base import Mode
from vllama.models.settings import ModelSettings
from vllama.models.types import Bundle, UpstreamModel
from vllama.plan.types import Need
from vllama.scheduler.policy import PendingLoad, Resident, decide_loads
from vllama.supervise.spec import Endpoint

CHAT = Need(mode=Mode.CHAT)


def set_for(name: str, **settings: object) -> Bundle:
    return replace(model(name), settings=ModelSettings(**settings))


async def use(scheduler, bundle: Bundle, keep_alive_s: float | None = None) -> None:
    scheduler.release(await scheduler.acquire(bundle, CHAT, keep_alive_s))


@pytest.mark.parametrize(
    ("settings", "asked_s", "kept_s"),
    [
        ({}, None, 300.0),
        ({"keep_alive_s": 60.0}, None, 60.0),
        ({"keep_alive_s": 60.0}, 5.0, 5.0),
        ({"pin": True}, None, math.inf),
        ({"pin": True}, 5.0, math.inf),
    ],
)
@in_world(keep_alive_s=300)
async def test_how_long_a_model_is_kept(world, scheduler, settings, asked_s, kept_s) -> None:
    await use(scheduler, set_for("m", **settings), asked_s)
    assert [item.keep_alive_s for item in scheduler.list_instances()] == [kept_s]


@in_world(keep_alive_s=300)
async def test_new_settings_hold_for_what_is_loaded(world, scheduler) -> None:
    await use(scheduler, set_for("a"))
    await use(scheduler, set_for("b"), 7.0)
    scheduler.set_limits(
        replace(world.limits, keep_alive_s=100),
        lambda bundle: replace(bundle, settings=ModelSettings(keep_alive_s=20.0)),
    )
    kept = {item.bundle.name: item.keep_alive_s for item in scheduler.list_instances()}
    assert kept == {"a:latest": 20.0, "b:latest": 7.0}  # which a request has asked for


@in_world(max_loaded=1)
async def test_a_model_elsewhere_takes_no_place_of_a_model_here(world, scheduler) -> None:
    await use(scheduler, set_for("here"))
    for name in ("far", "farther"):
        await use(scheduler, replace(model(name), upstream=UpstreamModel(servers=("x",))))
    await settle()
    assert len(scheduler.list_instances()) == 3
    await use(scheduler, set_for("another"))
    names = {item.bundle.name for item in scheduler.list_instances() if not item.retiring}
    assert names == {"far:latest", "farther:latest", "another:latest"}


def test_a_model_of_a_higher_priority_is_unloaded_later() -> None:
    def resident(key: str, used_s: float, **more: object) -> Resident:
        return Resident(key=key, holds={"ram": 5}, claims={"ram": 5}, last_used_s=used_s, **more)

    models = [
        resident("old but important", 1, priority=5),
        resident("new", 9),
        resident("unimportant", 10, priority=-1),
        resident("pinned", 0, pinned=True, priority=-9),
    ]
    load = PendingLoad(key="x", needs={"ram": 5}, since_s=0.0)
    gone = []
    while models:
        (decision,) = decide_loads({"ram": 0}, models, [load], max_loaded=9, now_s=0.0)
        gone += decision.evict
        models = [item for item in models if item.key not in decision.evict]
    assert gone == ["unimportant", "new", "old but important", "pinned"]


@in_world(slots=100)
async def test_upstreams_get_their_share_and_no_more_than_their_limit(world, scheduler) -> None:
    await use(scheduler, set_for("m"))
    (instance,), (process,) = scheduler.list_instances(), world.processes
    instance.traits = Traits(context_length=1, max_concurrency=100, model_name="usual")
    process.endpoint = Endpoint(port=1, weight=3)
    process.others = (Endpoint(port=2, model="other-name"), Endpoint(port=3, concurrent=1))
    assert instance.limit == 100
    leases = [await scheduler.acquire(set_for("m"), CHAT, None) for _ in range(9)]
    counts = [sum(lease.endpoint.port == port for lease in leases) for port in (1, 2, 3)]
    assert counts == [6, 2, 1]
    names = {lease.endpoint.port: lease.traits.model_name for lease in leases}
    assert names == {1: "usual", 2: "other-name", 3: "usual"}
    for lease in leases:
        scheduler.release(lease)
