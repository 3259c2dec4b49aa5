"""Who comes back after the death of an engine, and when."""

from __future__ import annotations

import asyncio

from vllama.scheduler.readmission import Readmission, Returning
from vllama.supervise.spec import Endpoint

ENGINE, NEXT = Endpoint(port=1), Endpoint(port=2)


def interrupt(gate: Readmission, *begun: tuple[str, int, bool]) -> dict[str, Returning]:
    found = {}
    for name, began_ns, is_empty in begun:
        found[name] = one = Returning(gate, began_ns)
        one.is_empty = is_empty
        assert not one.note_death(ENGINE)
    return found


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def come(answers: dict[str, Returning]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(one.wait_for_turn(), name=name) for name, one in answers.items()]
    await settle()
    return tasks


def back(tasks) -> list[str]:
    return [task.get_name() for task in tasks if task.done()]


async def play() -> None:
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
    # it dies again while the last one has nothing new: that one was it
    assert not found["early"].note_death(ENGINE)
    assert found["empty"].note_death(ENGINE)
    assert not found["late"].note_death(ENGINE)
    found["empty"].leave()
    # who comes now is not sent to the engine that has just ended, and is not blamed for it
    assert found["late"].knows_end_of(ENGINE) and not found["late"].knows_end_of(NEXT)
    tasks = await come({name: found[name] for name in ("early", "late")})
    found["early"].pass_on()  # they need not run to their ends: the cause is gone
    await settle()
    assert back(tasks) == ["early", "late"]


async def come_again() -> None:
    gate = Readmission()
    (answer,) = interrupt(gate, ("a", 1, False)).values()
    await come({"a": answer})
    await answer.wait_for_turn()  # its engine ended before it was sent


def test_one_whose_turn_it_is_does_not_wait_for_itself() -> None:
    asyncio.run(asyncio.wait_for(come_again(), 5))


def test_they_come_back_one_at_a_time_and_the_cause_is_found() -> None:
    asyncio.run(play())


async def play_again() -> None:
    gate = Readmission()
    found = interrupt(gate, ("a", 1, False), ("b", 2, False))
    tasks = await come(found)
    for one in found.values():
        one.pass_on()
        await settle()
    assert back(tasks) == ["a", "b"]
    assert not any(one.note_death(ENGINE) for one in found.values())  # a second time
    tasks = await come(found)
    found["a"].pass_on()
    await settle()
    assert back(tasks) == ["a"]  # now each runs to its end
    found["a"].leave()
    await settle()
    assert back(tasks) == ["a", "b"]
    assert found["b"].note_death(ENGINE)  # it was alone
    found["b"].leave()
    fresh = interrupt(gate, ("c", 3, False), ("d", 4, False))
    tasks = await come(fresh)
    fresh["c"].pass_on()
    await settle()
    assert back(tasks) == ["c", "d"]  # all is as at first


def test_after_a_second_death_each_runs_to_its_end() -> None:
    asyncio.run(play_again())


async def leave_early() -> None:
    gate = Readmission()
    found = interrupt(gate, ("a", 1, False), ("b", 2, False), ("c", 3, False))
    tasks = await come(found)
    tasks[1].cancel()
    await settle()
    found["a"].pass_on()
    await settle()
    assert tasks[2].done()


def test_a_client_that_leaves_holds_nobody_up() -> None:
    asyncio.run(leave_early())
