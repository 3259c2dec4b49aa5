"""Two searches for what changed an answer: the first bad version, and the fewest bad settings.

Both are told of each trial whether it was good or bad, or could not be tried (`SKIP`). Nothing is
tried twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import pairwise


class Outcome(StrEnum):
    """What came of one trial."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skipped"


def find_first_bad(count: int, test: Callable[[int], Outcome]) -> tuple[int, int]:
    """Find the change among `count` trials in order, of which the first is good, the last bad.

    Returns the last trial that is good and the first that is bad. All between the two, if there are
    any, were skipped. Halves, so that some log2(count) trials are made; around a skipped trial its
    neighbours are tried, the nearest to the middle first.
    """
    good, bad = 0, count - 1
    skipped: set[int] = set()
    while True:
        middle = (good + bad) / 2
        untried = [at for at in range(good + 1, bad) if at not in skipped]
        if not untried:
            return good, bad
        at = min(untried, key=lambda one: (abs(one - middle), one))
        match test(at):
            case Outcome.GOOD:
                good = at
            case Outcome.BAD:
                bad = at
            case Outcome.SKIP:
                skipped.add(at)


def find_fewest(
    changes: Sequence[str], test: Callable[[frozenset[str]], Outcome]
) -> tuple[str, ...]:
    """Find a smallest set of changes that is bad, if all together are bad and none of them is good.

    That is delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing
    input", 2002, algorithm ddmin): parts, then complements of parts, in ever finer divisions. Of
    the result no single change can be left out; what could not be tried does not count as bad.
    """
    known: dict[frozenset[str], Outcome] = {}

    def is_bad(chosen: Sequence[str]) -> bool:
        key = frozenset(chosen)
        if key not in known:
            known[key] = test(key)
        return known[key] is Outcome.BAD

    left, parts = tuple(changes), 2
    while len(left) > 1:
        subsets = _divide(left, parts)
        smaller = next((one for one in subsets if is_bad(one)), None)
        if smaller is not None:
            left, parts = smaller, 2
            continue
        complements = [tuple(one for one in left if one not in part) for part in subsets]
        smaller = next((one for one in complements if parts > 2 and is_bad(one)), None)
        if smaller is not None:
            left, parts = smaller, max(parts - 1, 2)
        elif parts >= len(left):
            break
        else:
            parts = min(len(left), 2 * parts)
    return left


def _divide(items: tuple[str, ...], parts: int) -> list[tuple[str, ...]]:
    """Divide items into nearly equal parts, of which none is empty."""
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(bounds) if start < end]
