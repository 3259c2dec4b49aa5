"""Which links of a chain are skipped, and for how long."""

from __future__ import annotations

from tests.manual_clock import ManualClock
from vllama.targets.choice import BROKEN_MOST_S, BROKEN_S, PROBED_MOST_S, Breakers


def test_a_link_that_failed_is_skipped_and_then_tried_by_one_request() -> None:
    clock = ManualClock()
    breakers: Breakers[str] = Breakers(clock)
    assert breakers.admit("a")
    breakers.note_failure("a", slow=False)
    assert not breakers.admit("a") and breakers.admit("b")
    clock.advance(BROKEN_S)
    assert breakers.admit("a") and not breakers.admit("a")
    breakers.note_success("a")
    assert breakers.admit("a") and breakers.admit("a")


def test_the_pause_doubles_up_to_a_limit_and_starts_anew_after_a_success() -> None:
    clock = ManualClock()
    breakers: Breakers[str] = Breakers(clock)
    pauses = []
    for _ in range(8):
        breakers.note_failure("a", slow=False)
        begun_s = clock.monotonic()
        while not breakers.admit("a"):
            clock.advance(0.5)
        pauses.append(clock.monotonic() - begun_s)
    assert pauses == [1, 2, 4, 8, 16, BROKEN_MOST_S, BROKEN_MOST_S, BROKEN_MOST_S]
    breakers.note_success("a")
    breakers.note_failure("a", slow=False)
    clock.advance(BROKEN_S)
    assert breakers.admit("a")


def test_what_cost_much_time_is_skipped_for_long_at_once() -> None:
    clock = ManualClock()
    breakers: Breakers[str] = Breakers(clock)
    breakers.note_failure("a", slow=True)
    clock.advance(BROKEN_MOST_S - 1)
    assert not breakers.admit("a")


def test_what_asks_to_be_left_alone_is_not_tried_before() -> None:
    clock = ManualClock()
    breakers: Breakers[str] = Breakers(clock)
    breakers.note_failure("a", most_s=PROBED_MOST_S, wait_s=60)
    breakers.note_failure("a", most_s=PROBED_MOST_S)  # of an answer that was under way
    clock.advance(59)
    assert not breakers.admit("a")
    clock.advance(1)
    assert breakers.admit("a")
    assert not breakers.admit("a")


def test_what_is_probed_never_waits_long() -> None:
    clock = ManualClock()
    breakers: Breakers[str] = Breakers(clock)
    for _ in range(9):
        breakers.note_failure("a", most_s=PROBED_MOST_S, reason="it fails")
    assert breakers.find_reason("a") == "it fails"
    clock.advance(PROBED_MOST_S)
    assert breakers.admit("a")
    breakers.note_success("a")
    assert not breakers.find_reason("a")
