"""Regular expressions whose time is linear in the text, told by their form.

An expression is linear where none of its unbounded repeats can be given back (they are possessive),
so that one try passes over a text once. `search` and its like try again from each position: there a
try that can fail must not have passed over the beginning of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from re import _compiler, _parser  # type: ignore[attr-defined]
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any

MOST = 16
"""How often a repeat that can be given back may match; then its number is no matter of the text."""

_ALPHABET = [chr(code) for code in range(128)] + ["\u00a0", "é", "｜", "▁", "◁"]
_SINGLE = (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)

Item = tuple[Any, Any]


def faults(pattern: re.Pattern[str], *, searched: bool) -> list[str]:
    """Return why an expression may take longer than its text is long; none: it is linear."""
    parsed = _parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    found = [f"{_word(code)} that can be given back" for code in _given_back(parsed)]
    if searched:
        found += _tried_again(list(parsed), (), required=False)
    return found


def _given_back(items: Iterable[Item]) -> Iterator[Any]:
    for code, value in items:
        if code in (op.MAX_REPEAT, op.MIN_REPEAT):
            _, most, body = value
            if most > MOST or (most > 1 and not (len(body) == 1 and body[0][0] in _SINGLE)):
                yield code
        for below in _bodies(code, value):
            yield from _given_back(below)


def _tried_again(
    items: Sequence[Item], prefix: tuple[set[str], ...], *, required: bool
) -> list[str]:
    """Return the repeats that pass over `prefix` in a try that can still fail.

    `prefix`: what a try begins with, a set for each character. `required`: something must follow.
    """
    found = []
    begun = bool(prefix)
    starts_at_run = False
    for number, (code, value) in enumerate(items):
        rest = items[number + 1 :]
        follows = required or any(_width(item) for item in rest)
        if code in _SINGLE and not begun:
            prefix = (*prefix, _letters(code, value))
            continue
        if code is op.ASSERT_NOT and value[0] < 0 and not prefix:
            starts_at_run = True
            continue
        if code is op.AT:
            continue
        repeat = code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
        if repeat and value[1] > MOST:
            least, _, body = value
            if not prefix and not starts_at_run and follows:
                found.append("a repeat at the beginning")
            if len(body) == 1 and body[0][0] in _SINGLE:
                letters = _letters(*body[0])
                if prefix and follows and all(letters & one for one in prefix):
                    found.append("a repeat that passes over the beginning of another try")
                begun = begun or bool(prefix)
            else:
                found += _tried_again(list(body), prefix, required=follows or least > 0)
        else:
            for below in _bodies(code, value):
                found += _tried_again(list(below), prefix, required=follows)
            begun = begun or bool(prefix)
    return found


def _bodies(code: Any, value: Any) -> list[Any]:
    if code is op.SUBPATTERN:
        return [value[-1]]
    if code is op.BRANCH:
        return list(value[1])
    if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        return [value[2]]
    if code in (op.ASSERT, op.ASSERT_NOT):
        return [value[1]]
    return [value] if code is op.ATOMIC_GROUP else []


def _width(item: Item) -> bool:
    """Tell whether an item must match something, or asserts something."""
    code, value = item
    if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        return bool(value[0])
    if code is op.BRANCH:
        return all(any(map(_width, branch)) for branch in value[1])
    if code is op.SUBPATTERN:
        return any(map(_width, value[-1]))
    return True


def _letters(code: Any, value: Any) -> set[str]:
    state = _parser.State()
    state.str, state.flags = "", int(re.UNICODE | re.DOTALL)
    compiled = _compiler.compile(_parser.SubPattern(state, [(code, value)]), state.flags)
    return {letter for letter in _ALPHABET if compiled.fullmatch(letter)}


def _word(code: Any) -> str:
    return str(code).lower().replace("_", " ")
