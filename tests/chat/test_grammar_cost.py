"""A grammar costs what may come next at one place, and what is skipped to get there."""

from __future__ import annotations

import pytest

from vllama.base.errors import BadRequest
from vllama.chat.grammar_cost import ENDLESS, MOST_SYMBOLS, measure_grammar
from vllama.chat.schema import MOST_SKIPPED, check_grammar

JSON = r"""
root   ::= object  # of llama.cpp's own collection: an object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
MOVES = """root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+
move ::= (pawn | piece) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?"""


def nest(part: str, count: str, depth: int) -> str:
    """Return a repetition of a repetition …"""
    return nest(f"({part}){count}", count, depth - 1) if depth else part


def double(rule: str, last: str, count: int) -> str:
    """Return rules that each use the next one twice."""
    rules = [f"r{n} ::= {rule.format(f'r{n + 1}')}" for n in range(count)]
    return "\n".join(["root ::= r0", *rules, f"r{count} ::= {last}"])


@pytest.mark.parametrize(
    "grammar",
    [
        JSON,
        MOVES,
        'root ::= "a"',
        'root ::= ("x"?){0,99}',
        "root ::= [a-z]{0,2000}",
        'root ::= "a" ("b" "c"?)*',
        "root ::= root",  # the engine says what is wrong with it
        "root ::= " + " | ".join(f'"word {n}"' for n in range(1999)),
        "root ::= " + " ".join(f'("k{n}" [0-9]+ ",")?' for n in range(90)),
        "root ::= " + " ".join(f'("k{n}" | "l{n}")' for n in range(1500)),
        '%llguidance {}\nstart: (("x"?){0,2000}){0,2000}',
        "",
        "?*+{",
        ")))(((",
        'root ::= "',
        "root ::= [",
        "root ::= {2",
        "::=",
        *(mark * 250_000 for mark in ("<", "[", " ")),
    ],
    ids=lambda text: text[:25],
)
def test_what_costs_little_is_taken(grammar: str) -> None:
    check_grammar(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= ("x"?){0,101}',
        'root ::= ("x"?){101,}',
        'root ::= "a" ("x"?){101} "b"',
        'root ::= (("x"?){9}){20}',
        "root ::= " + nest('"x"?', "{9}", 3),
        "root ::= " + nest('"x"', "{0,99}", 2) + "{0,99}",
        "root ::= " + '"x"? ' * 101,
        "root ::= " + " | ".join(f'"word {n}"' for n in range(2002)),
        double("{0} {0}", '"x"?', 10),
        double("{0} {0}", '"x"?', 2000),
        double('{0} | {0} "y"', '"x"', 12),
        double('{0} ("x"?){{5}}', '"a"', 30),  # skipped at the ends of rules in rules
        'root ::= "a" maybe{101}\nmaybe ::= "b" |',
        "root ::= " + '"a" ' * MOST_SYMBOLS,
    ],
    ids=lambda text: text[:25],
)
def test_a_short_grammar_that_keeps_an_engine_is_refused(grammar: str) -> None:
    with pytest.raises(BadRequest, match=f"cannot use the grammar: .* at most {MOST_SKIPPED}"):
        check_grammar(grammar)


@pytest.mark.parametrize(
    ("rule", "cost"),
    [
        ('"a"', 0.05),
        ('"a" | "b" | ("c" | "d")', 0.2),
        ('"a"?', 1),
        ('"a"? "b"? "c"', 2.05),
        ('("a"?){7}', 7),
        ('("a"?){3,7}', 7),
        ('("a"?){7,}', 8),
        ('"x" ("a" "b"?) "c"? "y"', 2.05),
        ('"a"' * MOST_SYMBOLS, ENDLESS),
    ],
)
def test_costs(rule: str, cost: float) -> None:
    assert measure_grammar(f"root ::= {rule}") == pytest.approx(cost)
