"""Change single values in JSON text and leave every other character as it is. Pure.

Takes what editors take in their settings: comments and commas after the last entry. (A parser and
a writer would lose both, and the user's layout; the round-trip libraries that there are for Python
cannot insert a key, or need node.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]  # not in typeshed
from typing import Any

Path = Sequence[str | int]
_TRIVIA = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_SCALAR = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null")
_REST_OF_LINE = re.compile(r"[^\S\r\n]*(?:/\*[^\n]*?\*/[^\S\r\n]*)*(?://[^\r\n]*)?(?=\r?\n)")
_MAX_DEPTH = 200


@dataclass(slots=True)
class _Node:
    """A value and where it stands; `entries` of an object or array are (key, start, value)."""

    start: int
    end: int
    value: Any
    entries: list[tuple[str | int, int, _Node]] = field(default_factory=list)
    comma: int | None = None
    """Where the comma after the last entry ends, if there is one."""


def load(text: str) -> Any:
    """Return the value of a text. Raises ValueError that says where it is wrong."""
    return _parse(text).value


def put(text: str, path: Path, value: object) -> str:
    """Return the text with `value` at `path`; what is missing on the way is made.

    A number in the path is the place in an array, its length to append. Blank text becomes a
    document. Raises ValueError if the text is no JSON, or has something else on the way.
    """
    if not text.strip():
        return _dump(nest(path, value), "  ", "", "\n") + "\n"
    node, layout = _parse(text), _Layout(text)
    for depth, key in enumerate(path):
        wanted, shown = (dict, "an object") if isinstance(key, str) else (list, "an array")
        if not isinstance(node.value, wanted):
            where = ".".join(map(str, path[:depth]))
            raise ValueError(f"{where or 'the whole'} is not {shown}")
        found = [child for name, _, child in node.entries if name == key]
        if not found:
            return layout.insert(node, key, nest(path[depth + 1 :], value))
        node = found[-1]  # of a key that is there twice, readers take the last
    if node.value == value and type(node.value) is type(value):
        return text
    return layout.replace(node, value)


class _Layout:
    """Writes into a text in the manner of that text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._newline = "\r\n" if "\r\n" in text else "\n"
        indented = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
        self._unit = indented.group(1) if indented else "  "

    def replace(self, node: _Node, value: object) -> str:
        new = _dump(value, self._unit, self._indent(node.start), self._newline)
        return self._text[: node.start] + new + self._text[node.end :]

    def insert(self, node: _Node, key: str | int, value: object) -> str:
        text, base = self._text, self._indent(node.start)
        name = json.dumps(key, ensure_ascii=False) + ": " if isinstance(key, str) else ""
        if not node.entries:
            indent = base + self._unit
            item = name + _dump(value, self._unit, indent, self._newline)
            inside = text[node.start + 1 : node.end - 1].rstrip()  # comments, if anything
            return (
                f"{text[: node.start + 1]}{inside}{self._newline}{indent}{item}"
                f"{self._newline}{base}{text[node.end - 1 :]}"
            )
        _, first, _ = node.entries[0]
        last = node.entries[-1][2].end
        if "\n" not in text[node.start : first]:  # all on one line: stay there
            item = name + json.dumps(value, ensure_ascii=False)
            comma = ", " if node.comma is None else " "
            at = node.comma or last
            return text[:at] + comma + item + text[at:]
        indent = self._indent(first)
        item = name + _dump(value, self._unit, indent, self._newline)
        at = node.comma or last
        rest = _REST_OF_LINE.match(text, at)  # a comment beside the last entry stays beside it
        end = rest.end() if rest else at
        between = text[at:end] if node.comma else "," + text[at:end]
        after = "," if node.comma else ""
        return f"{text[:at]}{between}{self._newline}{indent}{item}{after}{text[end:]}"

    def _indent(self, at: int) -> str:
        """Return the white space that the line of `at` begins with."""
        line = self._text[self._text.rfind("\n", 0, at) + 1 : at]
        return line[: len(line) - len(line.lstrip())]


def _dump(value: object, unit: str, indent: str, newline: str) -> str:
    text = json.dumps(value, indent=unit, ensure_ascii=False)
    return text.replace("\n", newline + indent)


def nest(path: Path, value: object) -> object:
    """Return `value` inside the objects and arrays of a path."""
    for key in reversed(path):
        value = {key: value} if isinstance(key, str) else [value]
    return value


def _parse(text: str) -> _Node:
    try:
        node = _value(text, _skip(text, 0), 0)
    except json.JSONDecodeError as error:
        raise _wrong(error.msg, text, error.pos) from None
    end = _skip(text, node.end)
    if end < len(text):
        raise _wrong("unexpected text", text, end)
    return node


def _value(text: str, at: int, depth: int) -> _Node:
    if depth > _MAX_DEPTH:
        raise _wrong("too deep", text, at)
    match text[at : at + 1]:
        case "{":
            return _container(text, at, "}", depth)
        case "[":
            return _container(text, at, "]", depth)
        case '"':
            string, end = scanstring(text, at + 1, True)
            return _Node(at, end, string)
    scalar = _SCALAR.match(text, at)
    if scalar is None:
        raise _wrong("a value is missing", text, at)
    try:
        return _Node(at, scalar.end(), json.loads(scalar.group()))
    except ValueError:
        raise _wrong(f"{scalar.group()} is no number", text, at) from None


def _container(text: str, start: int, closing: str, depth: int) -> _Node:
    node = _Node(start, start, {} if closing == "}" else [])
    at = _skip(text, start + 1)
    while text[at : at + 1] != closing:
        if node.entries and node.comma is None:
            raise _wrong(f"a comma or {closing} is missing", text, at)
        first = at
        key: str | int = len(node.entries)
        if closing == "}":
            if text[at : at + 1] != '"':
                raise _wrong("a key is missing", text, at)
            key, at = scanstring(text, at + 1, True)
            at = _skip(text, at)
            if text[at : at + 1] != ":":
                raise _wrong("a colon is missing", text, at)
            at = _skip(text, at + 1)
        child = _value(text, at, depth + 1)
        node.entries.append((key, first, child))
        at = _skip(text, child.end)
        node.comma = None
        if text[at : at + 1] == ",":
            node.comma = at + 1
            at = _skip(text, at + 1)
    node.end = at + 1
    if closing == "}":
        node.value = {key: child.value for key, _, child in node.entries}
    else:
        node.value = [child.value for _, _, child in node.entries]
    return node


def _skip(text: str, at: int) -> int:
    trivia = _TRIVIA.match(text, at)
    assert trivia is not None  # it may be empty
    return trivia.end()


def _wrong(reason: str, text: str, at: int) -> ValueError:
    line = text.count("\n", 0, at) + 1
    return ValueError(f"line {line}, column {at - text.rfind(chr(10), 0, at)}: {reason}")
