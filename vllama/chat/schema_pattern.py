"""Regular expressions of schemas that the grammars of engines can hold. Pure."""

from __future__ import annotations

import re

MOST_REPEATS = 200
"""Larger bounds take seconds in llama.cpp's converter, and minutes in xgrammar's patterns."""
_ESCAPE = re.compile(r"\\(?:[dwsS]|[^\w<>]|u(?!00(?:[01]|22|5[cC]))[0-9A-Fa-f]{4})")
_CLASS = re.compile(r"\[\^?(?:(?!&&|--|~~)[^\[\]\\])++\]")
_COUNT = re.compile(r"\{(?:\d*+,)?(\d++)")
# lookarounds and flags, anchors within, counts without a beginning, brackets that mean themselves
_NOT_HELD = re.compile(r"\\|\(\?(?!:|P?<\w++>)|[^|]\^|\$[^|]|\{(?!\d++(,\d*+)?\})|[\[\]]")
# one part of a simple pattern and how often it comes
_PART = re.compile(
    r"(?P<one>\\[dw.\-/]|\.|\[\^?(?:[A-Za-z0-9]-[A-Za-z0-9]|\\[dw]|[A-Za-z0-9 _:/@#,.+])++-?\]"
    r"|[A-Za-z0-9 _:/@#,%&=!~;-])(?P<many>[+*?]|\{(?P<low>\d{1,3})(?P<to>,(?P<high>\d{1,3})?)?\})?"
)
_NOT_IN_STRINGS = r'"\\\x00-\x1f'
_CLASSES = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}


def is_plain(pattern: str) -> bool:
    """Tell whether llguidance and xgrammar read a pattern as JSON schema does, in little time.

    They know no assertions but `^` and `$` around all or an alternative, and xgrammar writes
    quotes and line feeds as they are.
    """
    bare = _CLASS.sub("x", _ESCAPE.sub("x", pattern))
    counts = [int(count) for count in _COUNT.findall(bare)]
    anchored = "|^" in bare.partition("(")[2] or ")" in bare.partition("$|")[2]
    nested = re.search(r"\)\{", bare) and len(counts) > 1
    small = sum(counts) <= 2 * MOST_REPEATS and not (nested and max(counts) > 20)
    return small and not (anchored or _NOT_HELD.search(bare)) and not re.search(r'"|\\\\', pattern)


def spell_out_pattern(pattern: str) -> str | None:
    """Return a pattern of plain parts from begin to end, written without escapes; else None."""
    if not (pattern[:1] == "^" and pattern[-1:] == "$"):
        return None
    out, at = ["^"], 1
    while at < len(pattern) - 1:
        part = _PART.match(pattern, at, len(pattern) - 1)
        if part is None:
            return None
        low, high = (int(part[name] or 0) for name in ("low", "high"))
        if max(low, high) > MOST_REPEATS or (part["high"] and high < low):
            return None
        one = "[^]" if part["one"] == "." else part["one"]
        for short, long in _CLASSES.items():
            one = one.replace(short, long if one[0] == "[" else f"[{long}]")
        one = one if one[0] == "[" else f"[{one[-1]}]"
        if one.startswith("[^"):  # never what would end the string
            one = f"[^{_NOT_IN_STRINGS}{one[2:]}"
        out.append(one + (part["many"] or ""))
        at = part.end()
    return "".join(out) + "$"
