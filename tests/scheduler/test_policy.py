"""The policy as tables, over random situations, and over random histories of a whole machine."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.scheduler.policy import (
    Action,
    PendingLoad,
    Resident,
    decide_loads,
    relieve_pressure,
)

TURN_S = 5.0


def item(key, size=10, *, used=0.0, grows=0, **more):
    holds = size if isinstance(size, dict) else {"ram": size}
    claims = {"ram": size + grows} if grows else holds
    return Resident(key=key, holds=holds, claims=claims, last_used_s=used, **more)


def wants(needs, key="new", since=0.0):
    needs = needs if isinstance(needs, dict) else {"ram": needs}
    return PendingLoad(key=key, needs=needs, since_s=since)


def one(needs, free, models=(), most=3, now=0.0, settling=False):
    free = free if isinstance(free, dict) else {"ram": free}
    (decision,) = decide_loads(
        free, models, [wants(needs)], max_loaded=most, now_s=now, settling=settling
    )
    return decision


# situation → action, evicted, put to sleep, told to retire
TABLE = {
    "room and a slot": (one(5, 10, [item("a")]), "load", (), (), ()),
    "the least recently used goes": (
        one(5, 0, [item("a", used=2), item("b", used=1)]), "evict", ("b",), (), ()),
    "as many as are needed": (
        one(15, 0, [item("a", used=2), item("b", used=1), item("c", used=3)], 9),
        "evict", ("b", "a"), (), ()),
    "not one more than needed": (
        one(15, 0, [item("a", 1, used=1), item("b", 20, used=2)]), "evict", ("b",), (), ()),
    "no slot, memory to spare": (
        one(1, 100, [item("a", used=1), item("b", used=2)], 2), "evict", ("a",), (), ()),
    "a busy one is waited for": (one(5, 0, [item("a", busy=True)]), "wait", (), (), ()),
    "a busy one whose turn is over retires": (
        one(5, 0, [item("a", busy=True, turn_ends_s=3.0)], now=3.0), "wait", (), (), ("a",)),
    "the one that was there longest retires": (
        one(5, 0, [item("a", busy=True, since_s=2.0, turn_ends_s=0.0),
                   item("b", busy=True, since_s=1.0, turn_ends_s=0.0)]), "wait", (), (), ("b",)),
    "idle before busy": (
        one(5, 0, [item("a", busy=True, turn_ends_s=0.0), item("b", used=9)]),
        "evict", ("b",), (), ()),
    "one on its way out is waited for": (
        one(5, 0, [item("a", retiring=True), item("b")]), "wait", (), (), ()),
    "what it will not free is added": (
        one(15, 0, [item("a", retiring=True), item("b")]), "evict", ("b",), (), ()),
    "one that is kept for ever goes too": (
        one(5, 0, [item("a", pinned=True)]), "evict", ("a",), (), ()),
    "it goes after all others": (
        one(5, 0, [item("a", pinned=True, used=1), item("b", used=2)]), "evict", ("b",), (), ()),
    "but only if those are enough": (
        one(15, 0, [item("a", pinned=True, used=1), item("b", used=2), item("c", 3, used=3)]),
        "evict", ("b", "a"), (), ()),
    "where all are kept, they take turns": (
        one(5, 90, [item("a", pinned=True, used=1), item("b", pinned=True, used=2)], 2),
        "evict", ("a",), (), ()),
    "an idle one that is kept goes before a busy one": (
        one(5, 0, [item("a", pinned=True), item("b", busy=True, turn_ends_s=0.0)]),
        "evict", ("a",), (), ()),
    "a busy one that is kept retires too": (
        one(5, 0, [item("a", pinned=True, busy=True, turn_ends_s=0.0)]), "wait", (), (), ("a",)),
    "after the busy ones that are not": (
        one(5, 0, [item("a", pinned=True, busy=True, since_s=1.0, turn_ends_s=0.0),
                   item("b", busy=True, since_s=2.0, turn_ends_s=0.0)]), "wait", (), (), ("b",)),
    "larger than all there is": (
        one(500, 10, [item("a"), item("b", busy=True)]), "refuse", (), (), ()),
    "what a load under way still takes is not free": (
        one(5, 10, [item("a", 2, grows=8, busy=True)]), "wait", (), (), ()),
    "nor what one still takes that leaves, and had to be started again for who waits": (
        one(5, 10, [item("a", 0, grows=10, busy=True, retiring=True)]), "wait", (), (), ()),
    "memory on its way back: nobody goes for it": (
        one(5, 0, [item("a")], settling=True), "wait", (), (), ()),
    "memory on its way back: nothing is refused": (one(500, 0, settling=True), "wait", (), (), ()),
    "memory on its way back, and enough without it: a slot is made free": (
        one(1, 100, [item("a", used=1), item("b", used=2)], 2, settling=True),
        "evict", ("a",), (), ()),
    "sleep is enough": (
        one({"gpu0": 8}, {"gpu0": 0}, [item("a", {"gpu0": 10}, asleep_holds={"ram": 10})]),
        "evict", (), ("a",), ()),
    "sleep takes memory elsewhere that is needed": (
        one({"gpu0": 8, "ram": 5}, {"gpu0": 0, "ram": 6},
            [item("a", {"gpu0": 10}, asleep_holds={"ram": 10})]), "evict", ("a",), (), ()),
    "a sleeper takes no slot": (
        one(1, 10, [item("a", sleeping=True)], 1), "load", (), (), ()),
    "one on its way out has its slot still": (
        one(1, 100, [item("a", retiring=True), item("b")], 2), "wait", (), (), ()),
    "a sleeper gives up its memory": (
        one(15, 10, [item("a", sleeping=True)]), "evict", ("a",), (), ()),
    "another GPU's models stay": (
        one({"gpu1": 8}, {"gpu0": 0, "gpu1": 0},
            [item("a", {"gpu0": 10}, used=1), item("b", {"gpu1": 10}, used=2)]),
        "evict", ("b",), (), ()),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_one_that_waits(case):
    decision, action, evict, sleep, retire = TABLE[case]
    assert (decision.action, decision.evict, decision.sleep, decision.retire) == (
        action, evict, sleep, retire,
    )  # fmt: skip


def several(free, models, *waiting, most=9, now=0.0):
    decisions = decide_loads({"ram": free}, models, waiting, max_loaded=most, now_s=now)
    return {decision.key: decision for decision in decisions}


def test_both_that_fit_load_side_by_side():
    decided = several(20, [], wants(10, "x"), wants(10, "y"))
    assert {decision.action for decision in decided.values()} == {Action.LOAD}


def test_two_loads_do_not_take_the_same_room():
    decided = several(15, [], wants(10, "x", 1), wants(10, "y", 0))
    assert decided["y"].action is Action.LOAD
    assert decided["x"].action is Action.WAIT


def test_one_that_fits_goes_ahead_of_one_that_waits():
    decided = several(5, [item("a", 20, busy=True)], wants(20, "big", 0), wants(5, "small", 1))
    assert decided["big"].action is Action.WAIT
    assert decided["small"].action is Action.LOAD


def test_it_does_not_if_that_would_take_what_the_first_counts_on():
    decided = several(5, [item("a", 20, busy=True)], wants(25, "big", 0), wants(5, "small", 1))
    assert decided["small"].action is Action.WAIT


def test_two_that_wait_do_not_evict_for_the_same_room():
    models = [item("a", used=1), item("b", used=2)]
    decided = several(0, models, wants(10, "x", 0), wants(10, "y", 1))
    assert (decided["x"].evict, decided["y"].evict) == (("a",), ("b",))


def test_who_comes_later_is_not_refused_for_the_sake_of_the_first():
    decided = several(0, [item("a", busy=True)], wants(10, "x", 0), wants(10, "y", 1))
    assert decided["y"].action is Action.WAIT


def test_a_refusal_has_what_there_would_be_without_others():
    models = [item("a", 10, pinned=True), item("b", 20, busy=True)]
    assert one(500, 5, models).available == {"ram": 35}


@pytest.mark.parametrize("busy", [False, True])
def test_a_reason_blames_the_number_or_the_memory(busy):
    models = [item("a", busy=busy), item("b", busy=busy, retiring=busy)]
    for least, why in ((2, "only 2 models can be loaded at a time"), (9, "not enough free memory")):
        decision = one(5 if least == 9 else 1, 0 if least == 9 else 100, models, least)
        assert decision.reason.startswith(why)


def test_a_wait_names_the_models_that_hold_it_up():
    assert one(5, 0, [item("a", retiring=True), item("b")]).waits_for == ("a",)
    assert one(5, 0, [item("a", busy=True), item("b", 0)]).waits_for == ("a",)
    freed = one(5, 0, settling=True)
    assert freed.waits_for == () and freed.reason.endswith("to release its memory")


def test_what_is_made_good_says_whether_it_was_the_number_or_the_memory():
    two = [item("a", used=1), item("b", used=2)]
    assert held({"ram": 9}, two, 1).reason.startswith("only 1 model can be loaded at a time")
    assert held({"ram": -1}, two, 9).reason == "models use more memory than planned"


# -- too much is held ---------------------------------------------------------------------------


def held(free, models, most=9):
    return relieve_pressure(free, models, max_loaded=most)


# situation → action, evicted, put to sleep
HELD = {
    "all is well": (held({"ram": 0}, [item("a")]), None, (), ()),
    "the least recently used goes": (
        held({"ram": -3}, [item("a", used=2), item("b", used=1)]), "evict", ("b",), ()),
    "as many as are needed": (
        held({"ram": -13}, [item("a", used=1), item("b", 3, used=2), item("c", 4, used=3)]),
        "evict", ("a", "b"), ()),
    "not one more than needed": (
        held({"ram": -13}, [item("a", 2, used=1), item("b", 20, used=2)]), "evict", ("b",), ()),
    "all that can, if that is not enough": (
        held({"ram": -99}, [item("a", used=1), item("b", busy=True)]), "evict", ("a",), ()),
    "those who leave bring it": (
        held({"ram": -3}, [item("a", retiring=True), item("b")]), None, (), ()),
    "one that is kept for ever stays": (held({"ram": -3}, [item("a", pinned=True)]), None, (), ()),
    "but counts, and goes last": (
        held({"ram": 9}, [item("a", pinned=True), item("b", used=1), item("c", used=2)], 2),
        "evict", ("b",), ()),
    "and goes where all are kept": (
        held({"ram": 9}, [item("a", pinned=True, used=2), item("b", pinned=True, used=1)], 1),
        "evict", ("b",), ()),
    "a busy one is waited for": (held({"ram": -3}, [item("a", busy=True)]), "wait", (), ()),
    "sleep is enough": (
        held({"gpu0": -3, "ram": 20}, [item("a", {"gpu0": 10}, asleep_holds={"ram": 10})]),
        "evict", (), ("a",)),
    "more models than may be loaded (the limit was lowered)": (
        held({"ram": 9}, [item("a", used=2), item("b", used=1), item("c", busy=True)], 2),
        "evict", ("b",), ()),
    "sleepers take no place": (
        held({"ram": 9}, [item("a", sleeping=True), item("b"), item("c")], 2), None, (), ()),
    "too many models, busy ones": (
        held({"ram": 9}, [item("a", busy=True), item("b", busy=True)], 1), "wait", (), ()),
    "too many models and too much memory": (
        held({"ram": -9}, [item("a", 20, used=1), item("b", used=2), item("c", used=3)], 1),
        "evict", ("a", "b"), ()),
    "another GPU's models stay": (
        held({"gpu0": 5, "gpu1": -3},
                [item("a", {"gpu0": 10}, used=1), item("b", {"gpu1": 10}, used=2)]),
        "evict", ("b",), ()),
}  # fmt: skip


@pytest.mark.parametrize("case", HELD)
def test_more_is_held_than_may_be(case):
    decision, action, evict, sleep = HELD[case]
    assert (decision and decision.action) == action
    assert decision is None or (decision.evict, decision.sleep) == (evict, sleep)


# -- random situations --------------------------------------------------------------------------

POOLS = st.dictionaries(st.sampled_from(["ram", "gpu0", "gpu1"]), st.integers(0, 60), max_size=3)
MODELS = st.lists(
    st.builds(
        Resident,
        key=st.uuids().map(str),
        holds=POOLS,
        claims=POOLS,
        busy=st.booleans(),
        pinned=st.booleans(),
        retiring=st.booleans(),
        last_used_s=st.floats(0, 100),
        since_s=st.floats(0, 100),
        turn_ends_s=st.floats(0, 100),
        asleep_holds=st.none() | POOLS,
    ),
    max_size=7,
)
WAITING = st.lists(
    st.builds(PendingLoad, key=st.uuids().map(str), needs=POOLS, since_s=st.floats(0, 100)),
    max_size=4,
)


@given(
    st.dictionaries(st.sampled_from(["ram", "gpu0", "gpu1"]), st.integers(-60, 20), max_size=3),
    MODELS,
)
def test_what_is_made_good_costs_no_busy_one_and_none_that_is_kept(free, models):
    decision = relieve_pressure(free, models, max_loaded=9)
    over = {pool for pool, size in free.items() if size < 0}
    if decision is None:
        return
    assert over
    by_key = {model.key: model for model in models}
    for key in (*decision.evict, *decision.sleep):
        model = by_key[key]
        assert not (model.busy or model.pinned or model.retiring)
        assert any(model.frees.get(pool) for pool in over)
    assert (decision.action is Action.EVICT) == bool(decision.evict or decision.sleep)


@given(POOLS, MODELS, WAITING, st.integers(1, 5), st.floats(0, 100), st.booleans())
def test_rules_hold_in_any_situation(free, models, waiting, most, now, settling):
    decisions = decide_loads(free, models, waiting, max_loaded=most, now_s=now, settling=settling)
    by_key = {model.key: model for model in models}
    needs = {load.key: load.needs for load in waiting}
    assert sorted(needs) == sorted(decision.key for decision in decisions)
    touched = [key for d in decisions for key in (*d.evict, *d.sleep, *d.retire)]
    assert len(touched) == len(set(touched)), "one model went for two"
    for decision in decisions:
        gone = [by_key[key] for key in (*decision.evict, *decision.sleep)]
        assert not any(model.busy or model.retiring for model in gone)
        asked = [by_key[key] for key in decision.retire]
        assert all(model.busy and model.turn_ends_s <= now for model in asked)
        if settling and gone:
            wanted = needs[decision.key]
            assert all(size <= free.get(pool, 0) for pool, size in wanted.items())
    # all that load now fit at once, with what loads under way still take
    loading = [needs[d.key] for d in decisions if d.action is Action.LOAD]
    for pool in {pool for load in loading for pool in load if load[pool]}:
        open_claims = sum(
            max(0, model.claims.get(pool, 0) - model.holds.get(pool, 0))
            for model in models
            if not model.retiring and pool in model.claims
        )
        assert sum(load.get(pool, 0) for load in loading) + open_claims <= free.get(pool, 0)
    if loading:
        taken = sum(not model.sleeping for model in models)
        assert taken + len(loading) <= most


# -- random histories ---------------------------------------------------------------------------


class Machine:
    """A machine with memory: models grow while they load, and nothing is measured too kindly."""

    def __init__(self, total, most, sizes):
        self.total, self.most, self.sizes = total, most, sizes
        self.now = 0.0
        self.models = {}  # key → dict of what Resident has, sizes in bytes
        self.waiting = {}  # key → since
        self.loads = {}  # key → how often it was loaded
        self.refused = set()

    def ask(self, key):
        model = self.models.get(key)
        if model and not model["leaving"]:
            model["leases"] += 1
        elif key not in self.refused:
            self.waiting.setdefault(key, self.now)

    def finish(self, key):
        model = self.models.get(key)
        if model and model["leases"] and model["grown"]:
            model["leases"] -= 1
            model["used"] = self.now

    def grow(self, key):
        model = self.models.get(key)
        if model and not model["grown"]:
            model["holds"] = model["size"]
            model["grown"] = True
            model["since"] = self.now

    def keep(self, key):
        if key in self.models:
            self.models[key]["kept"] = True

    def end(self):
        for key, model in list(self.models.items()):
            if model["leaving"] and not model["leases"]:
                del self.models[key]

    def view(self):
        return [
            Resident(
                key=key, holds={"ram": model["holds"]}, claims={"ram": model["size"]},
                busy=bool(model["leases"]) or not model["grown"], pinned=model["kept"],
                retiring=model["leaving"], last_used_s=model["used"], since_s=model["since"],
                turn_ends_s=model["since"] + TURN_S if model["grown"] else math.inf,
            )
            for key, model in self.models.items()
        ]  # fmt: skip

    def arrange(self):
        free = self.total - sum(model["holds"] for model in self.models.values())
        # a model that still leaves must be gone before it is loaded again
        waiting = [
            PendingLoad(key=key, needs={"ram": self.sizes[key]}, since_s=since)
            for key, since in self.waiting.items()
            if key not in self.models
        ]
        for decision in decide_loads(
            {"ram": free}, self.view(), waiting, max_loaded=self.most, now_s=self.now
        ):
            for key in decision.evict:
                model = self.models[key]
                assert not model["leases"], "a busy model was evicted"
                assert model["grown"], "a load that was waited for was lost"
                model["leaving"] = True
            for key in decision.retire:
                self.models[key]["leaving"] = True
            if decision.action is Action.LOAD:
                del self.waiting[decision.key]
                self.loads[decision.key] = self.loads.get(decision.key, 0) + 1
                self.models[decision.key] = {
                    "size": self.sizes[decision.key], "holds": 0, "grown": False, "leases": 1,
                    "kept": False, "leaving": False, "used": self.now, "since": self.now,
                }  # fmt: skip
            elif decision.action is Action.REFUSE:
                del self.waiting[decision.key]
                self.refused.add(decision.key)
        assert sum(model["size"] for model in self.models.values()) <= self.total, "overbooked"
        assert len(self.models) <= self.most


KEYS = "abcd"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "finish", "finish", "grow", "tick", "end", "keep"]),
        st.sampled_from(KEYS),
    ),
    max_size=60,
)


@given(
    st.integers(20, 100),
    st.integers(1, 3),
    st.fixed_dictionaries({key: st.integers(1, 60) for key in KEYS}),
    STEPS,
)
def test_any_history_keeps_the_rules_and_everybody_gets_a_turn(total, most, sizes, steps):
    machine = Machine(total, most, sizes)
    for step, key in steps:
        if step == "tick":
            machine.now += 3.0
        elif step == "end":
            machine.end()
        else:
            getattr(machine, step)(key)
        machine.arrange()
    hungry = set(machine.waiting)
    # from now on everybody asks without a pause; whoever waits must get in nevertheless
    rounds = 0
    while hungry - machine.refused:
        rounds += 1
        assert rounds < 200, f"{hungry} starve"
        machine.now += 2.0
        for key in KEYS:
            machine.grow(key)
            machine.ask(key)
            model = machine.models.get(key)
            # one request always follows on another, but each of them ends
            if model and model["grown"]:
                model["leases"] = 0 if model["leaving"] else 1
        machine.end()
        before = dict(machine.loads)
        machine.arrange()
        hungry -= {key for key in KEYS if machine.loads.get(key) != before.get(key)}
