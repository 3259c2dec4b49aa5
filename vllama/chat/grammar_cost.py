"""The cost of a client's grammar in GBNF, from its text alone. Pure.

llama-server follows all places of a grammar that may come next at once, compares each with every
token, and finds them by skipping what may be empty: a short `("x"?){0,1000}` keeps it for minutes
(docs/reference/engines.md#what-a-field-costs). Syntax: llama.cpp's grammars/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MOST_SYMBOLS = 10_000
"""More are not looked through: others wait meanwhile."""
ENDLESS = 1e9
_PLACE = 1 / 20  # of the time that a skipped part takes
_SYMBOL = re.compile(
    r"""#[^\n]*+|"(?:\\.|[^"\\])*+"?|\[(?:\\.|[^]\\])*+]?|<[^>]*+>?"""
    r"|[\w-]++|::=|\{[^}]*+}?|[()|?*+.]"
)


class GrammarPart(NamedTuple):
    """A part of a rule: the costs at its beginning, behind that, and at its worst place."""

    lead: float = _PLACE
    trail: float = 0.0
    peak: float = _PLACE
    may_be_empty: bool = False


def measure_grammar(grammar: str) -> float:
    """Return how many parts a text can skip at most at once; `ENDLESS` for too many symbols."""
    rules: dict[str, list[str]] = {}
    symbols: list[str] = []
    for count, match in enumerate(_SYMBOL.finditer(grammar)):
        if count >= MOST_SYMBOLS:
            return ENDLESS
        symbol = match[0]
        if symbol == "::=" and symbols:
            rules[symbols.pop()] = symbols = []
        elif symbol[0] != "#":
            symbols.append(symbol)
    known: dict[str, GrammarPart] = {}
    # the rules and groups that are being read, with their alternatives so far
    stack: list[tuple[Iterator[str], str, list[list[GrammarPart]]]]
    stack = [(iter(rules.get("root", ())), "root", [[]])]
    while stack:
        symbols_left, rule, ways = stack[-1]
        symbol = next(symbols_left, "")
        if symbol == "|":
            ways.append([])
        elif symbol in (")", ""):
            known[rule] = _choose([_join(parts) for parts in ways])
            stack.pop()
            if stack:
                stack[-1][2][-1].append(known[rule])
        elif symbol == "(":
            stack.append((symbols_left, "", [[]]))
        elif symbol in rules and symbol not in known:
            known[symbol] = GrammarPart()  # while it is being read: it may refer to itself
            stack.append((iter(rules[symbol]), symbol, [[]]))
        elif symbol[0] not in "?*+{":
            ways[-1].append(known.get(symbol) or GrammarPart())
        elif ways[-1]:
            ways[-1][-1] = _repeat(ways[-1][-1], symbol)
    return known["root"].peak


def _join(parts: list[GrammarPart]) -> GrammarPart:
    """Return a sequence as one part."""
    lead, trail, peak, is_empty = 0.0, 0.0, 0.0, True
    for part in reversed(parts):
        rest = part.trail + lead
        trail = max(trail, rest * is_empty)
        lead = min(ENDLESS, part.lead + lead * part.may_be_empty)
        peak = max(peak, part.peak, rest, lead)
        is_empty &= part.may_be_empty
    return GrammarPart(lead, trail, peak, is_empty)


def _choose(ways: list[GrammarPart]) -> GrammarPart:
    is_empty = any(way.may_be_empty for way in ways)
    lead = min(ENDLESS, max(sum(way.lead for way in ways), is_empty))
    peak = max(lead, *(way.peak for way in ways))
    return GrammarPart(lead, max(way.trail for way in ways), peak, is_empty)


def _repeat(part: GrammarPart, symbol: str) -> GrammarPart:
    least, most = {"?": (0, 1), "*": (0, 2), "+": (1, 2)}.get(symbol, (0, 0))
    if symbol[0] == "{":
        counts = [int(count[:9]) for count in re.findall(r"\d++", symbol)] or [0]
        least, most = counts[0], counts[-1] + symbol.endswith(",}")
    if part.may_be_empty:
        lead = min(ENDLESS, part.lead * most)
        return GrammarPart(lead, lead + part.trail, max(part.peak, lead + part.trail), True)
    # each one more follows the one before it, so that only the next is a place
    lead, trail = max(part.lead, least == 0), part.trail + part.lead * (most > 1)
    return GrammarPart(lead, trail, max(part.peak, lead, trail), least == 0)
