"""Which links of a chain are skipped, and for how long."""

from __future__ import annotations

from vllama.routes.chain import BROKEN_MOST_S, BROKEN_S, Breakers


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def test_a_link_that_failed_is_skipped_and_then_tried_by_one_request() -> None:
    clock = Clock()
    breakers = Breakers(clock)  # type: ignore[arg-type]
    assert breakers.admit("a")
    breakers.note_failure("a", slow=False)
    assert not breakers.admit("a") and breakers.admit("b")
    clock.now_s += BROKEN_S
    assert breakers.admit("a") and not breakers.admit("a")
    breakers.note_success("a")
    assert breakers.admit("a") and breakers.admit("a")


def test_the_pause_doubles_up_to_a_limit_and_starts_anew_after_a_success() -> None:
    clock = Clock()
    breakers = Breakers(clock)  # type: ignore[arg-type]
    pauses = []
    for _ in range(8):
        breakers.note_failure("a", slow=False)
        begun_s = clock.now_s
        while not breakers.admit("a"):
            clock.now_s += 0.5
        pauses.append(clock.now_s - begun_s)
    assert pauses == [1, 2, 4, 8, 16, BROKEN_MOST_S, BROKEN_MOST_S, BROKEN_MOST_S]
    breakers.note_success("a")
    breakers.note_failure("a", slow=False)
    clock.now_s += BROKEN_S
    assert breakers.admit("a")


def test_what_cost_much_time_is_skipped_for_long_at_once() -> None:
    clock = Clock()
    breakers = Breakers(clock)  # type: ignore[arg-type]
    breakers.note_failure("a", slow=True)
    clock.now_s += BROKEN_MOST_S - 1
    assert not breakers.admit("a")
