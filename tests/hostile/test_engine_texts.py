"""What a model writes takes time in proportion to its length, whatever it is.

All requests share one event loop: an expression that tries again and again, or a stream that looks
at all that it holds for each token, would stop the others as well. Nothing here measures time.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import SupportsIndex

import pytest

import vllama
from tests.hostile.expressions import faults
from vllama.chat.parsers.call_values import Form, Toolset
from vllama.chat.parsers.harmony import HarmonySplitter
from vllama.chat.parsers.thinking import ThinkSplitter, Trim
from vllama.chat.stops import StopFinder
from vllama.chat.tool_calls import CallScanner

# these read a client's request or a model's template; no other may be added without a thought
OF_REQUESTS = {
    "chat.bodies", "chat.grammar_schema", "chat.schema", "chat.schema_pattern",
    "chat.templates.go.functions", "chat.templates.go.lex", "chat.templates.template_style",
    "dialects.ollama.read", "dialects.openai.messages",
}  # fmt: skip
ROOMS = ("chat.", "dialects.")
SEARCHES = ("search", "sub", "subn", "split", "findall", "finditer")


def expressions() -> Iterator[tuple[str, re.Pattern[str], bool]]:
    """Give name, expression and whether it is searched for, of all that meet an engine's text."""
    for found in pkgutil.walk_packages(vllama.__path__, "vllama."):
        name = found.name.removeprefix("vllama.")
        if found.ispkg or name in OF_REQUESTS or not name.startswith(ROOMS):
            continue
        module = importlib.import_module(found.name)
        calls = [
            (node.func.value.id, node.func.attr, node.args)
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ]
        searched = {of for of, how, _ in calls if how in SEARCHES}
        for variable, value in vars(module).items():
            if isinstance(value, re.Pattern):
                yield f"{name}.{variable}", value, variable in searched
        for of, how, args in calls:
            if of == "re" and how in (*SEARCHES, "match", "fullmatch"):
                assert isinstance(args[0], ast.Constant), f"{name}: compile it at the top"
                yield f"{name}: {args[0].value}", re.compile(args[0].value), how in SEARCHES


@pytest.mark.parametrize(
    ("name", "pattern", "searched"), [pytest.param(*e, id=e[0]) for e in expressions()]
)
def test_every_expression_is_linear(name: str, pattern: re.Pattern[str], searched: bool) -> None:
    assert not faults(pattern, searched=searched), pattern.pattern


@pytest.mark.parametrize(
    ("pattern", "searched"),
    [
        (r"(?:a|b\S*)*", False),
        (r"\s*[;,]?\s*(?=x)", False),
        (r"\w+[^<]*<", False),
        (r"(?:ab?c){0,12}", False),
        (r"a{0,400}b", False),
        (r"\s*+x", True),
        (r'a"[^,]*+,', True),
        (r"(?:a[^b]*+b)++c", True),
        (r"a(?:[^b]*+b)++", True),
    ],
)
def test_what_is_not_linear_is_told(pattern: str, searched: bool) -> None:
    assert faults(re.compile(pattern), searched=searched)


class Counted(str):
    """A token that counts the characters of all texts that it is joined to or cut into."""

    __slots__ = ()
    characters = 0

    def __radd__(self, before: str) -> str:
        Counted.characters += len(before) + len(self)
        return Counted(str.__add__(before, self))

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        part = Counted(str.__getitem__(self, key))
        Counted.characters += len(part)
        return part


TOOLS = {"get": {}}
READERS: dict[str, Callable[[], Callable[[str], object]]] = {
    "thinking": lambda: ThinkSplitter().feed,
    "opened thinking": lambda: ThinkSplitter(opened=True).feed,
    "harmony": lambda: HarmonySplitter().feed,
    "trim": lambda: partial(Trim().feed, text=""),
    "calls": lambda: CallScanner(Toolset(schemas=TOOLS)).feed,
    "calls by name": lambda: CallScanner(Toolset(schemas=TOOLS, form=Form.NAMED)).feed,
    "calls by recipient": lambda: CallScanner(Toolset(schemas=TOOLS, form=Form.RECIPIENT)).feed,
    "stops": lambda: StopFinder(["a" * 500 + "b", " " * 3000 + "b"]).feed,
}
BEGINNINGS = (
    "", "a", "{", "[", '{"name"', "```", "get", "<think>a", "<|channel|>",
    "Here is my thought process: Here is my", "<|channel|>commentary to=functions.get<|message|>",
)  # fmt: skip
TOKENS = (" ", "\n", "a", "to=", "<|", "<|end|>")
COUNT = 1000
# what is held may be looked at for each token, if it is bounded: up to 411 characters of a header
MOST = 250


@pytest.mark.parametrize("reader", READERS)
def test_a_stream_is_looked_at_once(reader: str) -> None:
    for beginning in BEGINNINGS:
        for token in TOKENS:
            feed = READERS[reader]()
            Counted.characters = 0
            feed(beginning)
            for _ in range(COUNT):
                feed(Counted(token))
            assert Counted.characters <= MOST * COUNT * len(token), (beginning, token)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>analysis<|message|>a<|end|>",
        "<|start|>" + "x" * 400,
        "<|end|>",
        ">>>get{}",
        " a",
    ],
)
def test_a_whole_answer_is_not_copied_again_and_again(reader: str, text: str) -> None:
    Counted.characters = 0
    READERS[reader]()(Counted(text * COUNT))
    assert Counted.characters <= 10 * COUNT * len(text)
