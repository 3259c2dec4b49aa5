"""The policy as tables, and over random situations."""

from hypothesis import given
from hypothesis import strategies as st

from vllama.scheduler.policy import Action, Loaded, make_room


def item(key, size=10, *, busy=False, pinned=False, used=0.0):
    return Loaded(key=key, memory_bytes=size, busy=busy, pinned=pinned, last_used_s=used)


def test_room_and_a_slot():
    assert make_room(5, 10, [item("a")], 3).action is Action.LOAD


def test_the_least_recently_used_goes_first():
    decision = make_room(5, 0, [item("a", used=2), item("b", used=1)], 3)
    assert (decision.action, decision.evict) == (Action.EVICT, ("b",))


def test_as_many_as_are_needed_go():
    decision = make_room(15, 0, [item("a", used=2), item("b", used=1), item("c", used=3)], 9)
    assert decision.evict == ("b", "a")


def test_a_full_table_evicts_even_with_memory_to_spare():
    decision = make_room(1, 100, [item("a", used=1), item("b", used=2)], 2)
    assert decision.evict == ("a",)


def test_a_busy_model_is_waited_for():
    assert make_room(5, 0, [item("a", busy=True)], 3).action is Action.WAIT


def test_a_pinned_model_is_neither_evicted_nor_waited_for():
    decision = make_room(5, 0, [item("a", pinned=True)], 3)
    assert decision.action is Action.REFUSE
    assert "a" in decision.reason


def test_what_can_never_fit_is_refused():
    assert make_room(500, 10, [item("a"), item("b", busy=True)], 3).action is Action.REFUSE


LOADED = st.lists(
    st.builds(
        Loaded,
        key=st.uuids().map(str),
        memory_bytes=st.integers(0, 100),
        busy=st.booleans(),
        pinned=st.booleans(),
        last_used_s=st.floats(0, 100),
    ),
    max_size=8,
)


@given(st.integers(0, 200), st.integers(-50, 200), LOADED, st.integers(1, 6))
def test_rules_hold_in_any_situation(need, free, loaded, most):
    decision = make_room(need, free, loaded, most)
    gone = [entry for entry in loaded if entry.key in decision.evict]
    assert not any(entry.busy or entry.pinned for entry in gone)
    if decision.action in (Action.LOAD, Action.EVICT):
        assert len(loaded) - len(gone) + 1 <= most
        assert need <= free + sum(entry.memory_bytes for entry in gone)
    else:
        assert not gone
    if decision.action is Action.WAIT:
        assert any(entry.busy and not entry.pinned for entry in loaded)
