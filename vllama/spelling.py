"""What a misspelt name may have meant."""

from __future__ import annotations

from collections.abc import Iterable

LEAST_LIKENESS = 0.75
"""Of 1.0; a swapped pair in a word of four letters has just that, and less is another word."""


def find_similar(name: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the `known` names that `name` may be a misspelling of, the most similar first.

    Case does not matter.
    """
    import difflib

    by_key = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_key, n=most, cutoff=LEAST_LIKENESS)
    return [by_key[key] for key in near]
