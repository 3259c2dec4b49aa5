"""Which of several equal targets answers next."""

from __future__ import annotations

import pytest

from vllama.supervise.spec import Endpoint
from vllama.targets.choice import choose_target

A, B, C = (Endpoint(port=port) for port in (1, 2, 3))
HEAVY = Endpoint(port=4, weight=2)
SMALL = Endpoint(port=5, concurrent=1)


@pytest.mark.parametrize(
    ("loads", "ill", "known", "chosen"),
    [
        ({A: 0, B: 0}, (), None, A),
        ({A: 1, B: 0}, (), None, B),
        ({A: 5, B: 0}, (B,), None, A),  # healthy comes before idle
        ({A: 0, B: 3}, (A, B), None, A),  # nothing is healthy: as if all were
        ({A: 1, B: 0}, (), A, A),  # its cache is worth one request more
        ({A: 2, B: 0}, (), A, B),
        ({A: 0, B: 1}, (A,), A, B),  # but not a failure
        ({A: 4, B: 3}, (), A, B),  # it is full
        ({A: 1, HEAVY: 2}, (), None, HEAVY),
        ({A: 1, HEAVY: 3}, (), None, A),
        ({A: 3, SMALL: 1}, (), None, A),
        ({A: 1, SMALL: 1}, (), SMALL, A),
        ({A: 0, SMALL: 1}, (A,), None, SMALL),  # full, and the only healthy one
        ({A: 1, B: 1, C: 0}, (C,), B, B),
    ],
)
def test_health_comes_first_then_the_cache_then_load_by_weight(loads, ill, known, chosen) -> None:
    slots = 4
    found = choose_target(loads, lambda each: each not in ill, known, slots)
    assert found == chosen
