"""A small reader of GBNF for tests: does a text match a grammar, and is the grammar sound?

By the book of llama.cpp's `grammars/README.md`: literals, classes, names, groups, alternatives and
repetitions; a name without a rule and an alternative without a symbol are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

_TOKEN = re.compile(
    r'(?P<literal>"(?:\\.|[^"\\])*")|(?P<set>\[(?:\\.|[^\]\\])*\])|(?P<name>[A-Za-z0-9-]+)'
    r"|(?P<times>[*+?]|\{\d+(?:,\d*)?\})|(?P<sign>[()|])|(?P<space>\s+)"
)
Matcher = Callable[[int], frozenset[int]]


class Grammar:
    """One grammar, ready to match."""

    def __init__(self, text: str) -> None:
        rules = (line.split(" ::= ", 1) for line in text.split("\n"))
        self._bodies = {name: list(_tokens(body)) for name, body in rules}
        for body in self._bodies.values():
            for kind, token in body:
                assert kind != "name" or token in self._bodies, f"no rule: {token}"

    def matches(self, text: str) -> bool:
        """Tell whether all of `text` is what the rule `root` says."""

        @cache
        def ends(rule: str, start: int) -> frozenset[int]:
            body = self._bodies[rule]
            found, rest = alternatives(body, 0, frozenset([start]))
            assert rest == len(body), body
            return found

        def alternatives(
            body: list[tuple[str, str]], at: int, starts: frozenset[int]
        ) -> tuple[frozenset[int], int]:
            out: frozenset[int] = frozenset()
            while True:
                here, began = starts, at
                while at < len(body) and body[at][1] not in ("|", ")"):
                    one, at = symbol(body, at)
                    low, high = 1, 1
                    if at < len(body) and body[at][0] == "times":
                        low, high = _bounds(body[at][1], len(text))
                        at += 1
                    here = _repeat(one, here, low, high)
                assert at > began, "an empty alternative"
                out |= here
                if at == len(body) or body[at][1] == ")":
                    return out, at
                at += 1

        def symbol(body: list[tuple[str, str]], at: int) -> tuple[Matcher, int]:
            kind, token = body[at]
            if kind == "name":
                return (lambda start: ends(token, start)), at + 1
            if token == "(":
                _, end = alternatives(body, at + 1, frozenset())
                return (lambda start: alternatives(body, at + 1, frozenset([start]))[0]), end + 1
            pattern = _pattern(kind, token)

            def plain(start: int) -> frozenset[int]:
                found = pattern.match(text, start)
                return frozenset([found.end()] if found else [])

            return plain, at + 1

        return len(text) in ends("root", 0)


def _tokens(body: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(body):
        found = _TOKEN.match(body, at)
        assert found, f"not GBNF: {body[at:]!r}"
        at = found.end()
        if found.lastgroup and found.lastgroup != "space":
            yield found.lastgroup, found.group()


@cache
def _pattern(kind: str, token: str) -> re.Pattern[str]:
    if kind == "set":
        return re.compile("[" + token[1:-1].replace("[", r"\[") + "]")
    return re.compile(
        re.escape(re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), token[1:-1]))
    )


def _bounds(times: str, most: int) -> tuple[int, int]:
    if times[0] != "{":
        return {"*": (0, most), "+": (1, most), "?": (0, 1)}[times]
    low, comma, high = times[1:-1].partition(",")
    return int(low), int(high) if high else most if comma else int(low)


def _repeat(one: Matcher, starts: frozenset[int], low: int, high: int) -> frozenset[int]:
    out = starts if low == 0 else frozenset()
    for number in range(1, high + 1):
        starts = frozenset(end for start in starts for end in one(start))
        if not starts:
            break
        if number >= low:
            out |= starts
    return out
