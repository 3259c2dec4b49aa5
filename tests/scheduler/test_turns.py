"""Whose turn it is: in turn between flows, by their weights; one at a time after a death."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.world import in_loop, settle
from vllama.scheduler.turns import FairQueue, Flow, Readmission, Returning
from vllama.supervise.spec import Endpoint

ENGINE, NEXT = Endpoint(port=1), Endpoint(port=2)
ANN, BOB, EVE = Flow("ann"), Flow("bob"), Flow("eve", 3)


def drain(queue: FairQueue) -> list:
    return [queue.pop() for _ in range(len(queue))]


def fill(*items: tuple[str, Flow]) -> FairQueue:
    queue: FairQueue = FairQueue()
    for item, flow in items:
        queue.append(item, flow)
    return queue


def test_one_flow_is_served_in_order_of_arrival() -> None:
    assert drain(fill(*((str(i), ANN) for i in range(5)))) == list("01234")


def test_flows_take_turns() -> None:
    queue = fill(*((f"a{i}", ANN) for i in range(4)), ("b0", BOB), ("b1", BOB))
    assert drain(queue) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_a_weight_is_a_number_of_turns() -> None:
    queue = fill(*((f"a{i}", ANN) for i in range(40)), *((f"e{i}", EVE) for i in range(40)))
    assert Counter(item[0] for item in drain(queue)[:40]) == {"a": 10, "e": 30}


def test_silence_saves_up_no_turns() -> None:
    queue = fill(*((f"a{i}", ANN) for i in range(9)))
    assert [queue.pop() for _ in range(5)] == [f"a{i}" for i in range(5)]
    for i in range(3):
        queue.append(f"b{i}", BOB)
    # bob has had nothing before, and yet no more than every other turn now
    assert drain(queue) == ["b0", "a5", "b1", "a6", "b2", "a7", "a8"]


def test_who_leaves_the_queue_takes_no_turn() -> None:
    queue = fill(*((f"a{i}", ANN) for i in range(50)), ("b0", BOB), ("b1", BOB))
    for i in range(49):
        assert queue.remove(f"a{i}")
    assert not queue.remove("a0") and len(queue) == 3
    assert drain(queue) == ["a49", "b0", "b1"]


def test_what_had_its_turn_goes_first() -> None:
    queue = fill(("a0", ANN))
    queue.append_first("again")
    assert list(queue) == ["again", "a0"] and queue.find_place("a0") == 2
    assert drain(queue) == ["again", "a0"]
    with pytest.raises(IndexError):
        queue.pop()


def test_a_full_queue_loses_the_last_of_the_longest_flow() -> None:
    queue = fill(*((f"a{i}", ANN) for i in range(4)), ("b0", BOB))
    assert queue.pop_from_longest(ANN) is None
    assert queue.pop_from_longest(BOB) == "a3"
    assert queue.pop_from_longest(BOB) == "a2"
    # both would have two: whoever comes last is refused
    assert queue.pop_from_longest(BOB) is None
    assert FairQueue().pop_from_longest(ANN) is None


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=60))
def test_iteration_foretells_the_order(steps: list[tuple[str, bool]]) -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 7.0, "e": 1.0}
    queue: FairQueue = FairQueue()
    for number, (name, serve) in enumerate(steps):
        queue.append((name, number), Flow(name, weights[name]))
        if serve:
            queue.pop()
    foretold = list(queue)
    assert len(foretold) == len(queue)
    assert drain(queue) == foretold
    assert not queue and not queue._starts


@pytest.mark.parametrize("seed", range(25))
def test_no_burst_delays_others_by_more_than_its_share(seed: int) -> None:
    """Simulate slots, bursts and steady clients, and count the turns of others while one waits.

    The bound: before the k-th waiting request of a flow with weight w is served, a flow with
    weight v is served at most k * v / w + 1 times.
    """
    chance = random.Random(seed)
    weights = {name: chance.choice((1, 1, 2, 5, 10)) for name in ("burst", "b", "c", "d")}
    queue: FairQueue = FairQueue()
    served: Counter[str] = Counter()
    arrivals: dict[int, tuple[str, int, Counter[str]]] = {}
    waiting: Counter[str] = Counter()
    number = 0
    for step in range(600):
        coming = [name for name in "bcd" if chance.random() < 0.15]
        if step % 150 == 0:
            coming += ["burst"] * 100
        for name in coming:
            waiting[name] += 1
            arrivals[number] = (name, waiting[name], Counter(served))
            queue.append(number, Flow(name, weights[name]))
            number += 1
        if queue and chance.random() < 0.7:
            item = queue.pop()
            name, place, before = arrivals.pop(item)
            for other, weight in weights.items():
                if other != name:
                    bound = place * weight / weights[name] + 1
                    assert served[other] - before[other] <= math.floor(bound + 1e-9)
            served[name] += 1
            waiting[name] -= 1
    assert min(served.values()) > 10


# -- after the death of an engine -----------------------------------------------------------------


def interrupt(gate: Readmission, *begun: tuple[str, int, bool]) -> dict[str, Returning]:
    found = {}
    for name, began_ns, is_empty in begun:
        found[name] = one = Returning(gate, began_ns)
        one.is_empty = is_empty
        assert not one.note_death(ENGINE, was_alone=False)
    return found


async def come(answers: dict[str, Returning]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(one.wait_for_turn(), name=name) for name, one in answers.items()]
    await settle()
    return tasks


def back(tasks) -> list[str]:
    return [task.get_name() for task in tasks if task.done()]


@in_loop
async def test_they_come_back_one_at_a_time() -> None:
    gate = Readmission()
    found = interrupt(gate, ("empty", 1, True), ("late", 3, False), ("early", 2, False))
    tasks = await come({name: found[name] for name in ("early", "empty", "late")})
    assert back(tasks) == ["early"]
    found["early"].pass_on()
    await settle()
    assert back(tasks) == ["early", "late"]
    found["late"].leave()  # it may also end, or its client leave
    await settle()
    assert back(tasks) == ["early", "empty", "late"]
    assert not gate.is_one_by_one
    # who comes now is not sent to the engine that has just ended
    assert found["late"].knows_end_of(ENGINE) and not found["late"].knows_end_of(NEXT)


@in_loop
async def test_only_who_ran_alone_is_the_cause() -> None:
    """The last one is coming back when the engine dies again: another may have killed it."""
    opened = []
    gate = Readmission(lambda: opened.append(gate.is_one_by_one))
    found = interrupt(gate, ("a", 1, False), ("b", 2, False), ("c", 3, False))
    tasks = await come(found)
    for name in "ab":
        found[name].pass_on()
        await settle()
    assert back(tasks) == ["a", "b", "c"]
    assert not found["c"].note_death(NEXT, was_alone=True)  # no trial yet
    assert not found["b"].note_death(NEXT, was_alone=False)
    assert not found["a"].note_death(NEXT, was_alone=False)
    assert gate.is_one_by_one
    tasks = await come({name: found[name] for name in "cba"})
    found["c"].pass_on()  # it runs to its end all the same
    await settle()
    assert back(tasks) == ["c"]
    found["c"].leave()
    await settle()
    assert back(tasks) == ["c", "b"] and not opened  # the newest is the likeliest cause
    assert not found["b"].note_death(ENGINE, was_alone=False)  # a request beside it
    assert found["b"].note_death(ENGINE, was_alone=True)
    assert opened == [False] and found["a"].deaths == 0  # they need not run to their ends
    found["b"].leave()
    await settle()
    assert back(tasks) == ["c", "b", "a"]


@in_loop
async def test_one_whose_turn_it_is_does_not_wait_for_itself() -> None:
    gate = Readmission()
    (answer,) = interrupt(gate, ("a", 1, False)).values()
    await come({"a": answer})
    await asyncio.wait_for(answer.wait_for_turn(), 5)  # its engine ended before it was sent


@in_loop
async def test_after_the_last_trial_all_is_as_at_first() -> None:
    opened = []
    gate = Readmission(lambda: opened.append(True))
    (alone,) = interrupt(gate, ("alone", 1, False)).values()
    await come({"alone": alone})
    assert not alone.note_death(NEXT, was_alone=True)
    assert gate.is_one_by_one and alone.is_admitted
    alone.pass_on()
    assert gate.is_one_by_one and not opened
    alone.leave()
    assert not gate.is_one_by_one and opened == [True]
    fresh = interrupt(gate, ("c", 3, False), ("d", 4, False))
    tasks = await come(fresh)
    fresh["c"].pass_on()
    await settle()
    assert back(tasks) == ["c", "d"]


@in_loop
async def test_a_client_that_leaves_holds_nobody_up() -> None:
    gate = Readmission()
    found = interrupt(gate, ("a", 1, False), ("b", 2, False), ("c", 3, False))
    tasks = await come(found)
    tasks[1].cancel()
    await settle()
    found["a"].pass_on()
    await settle()
    assert tasks[2].done()
