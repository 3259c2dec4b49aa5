"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable

LEAST_LIKENESS = 0.75
"""Of 1.0; a swapped pair in a word of four letters has just that, and less is another word."""


def suggest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return the hint for a `name` that is not among the `known`: what it may have meant.

    If it resembles none of them, the hint is `otherwise`, or else the list of them.
    """
    known = list(known)
    near = find_similar(name, known, most=1)
    return f"did you mean {near[0]}?" if near else otherwise or f"choose one of {', '.join(known)}"


def find_similar(name: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the `known` names that `name` may be a misspelling of, the most similar first.

    Case does not matter.
    """
    import difflib

    by_key, wanted = {one.lower(): one for one in known}, name.lower()
    chars = len(wanted)  # with too many or too few, a name cannot be so like it
    keys = [
        key for key in by_key if 2 * min(chars, len(key)) >= LEAST_LIKENESS * (chars + len(key))
    ]
    near = difflib.get_close_matches(wanted, keys, n=most, cutoff=LEAST_LIKENESS)
    return [by_key[key] for key in near]
