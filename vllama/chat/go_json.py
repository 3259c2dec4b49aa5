"""JSON bodies as Go reads them: the first value only, keys in any case, null is absent.

Ollama decodes with `encoding/json` through gin, whatever the Content-Type; its error texts are
what clients show, so they are imitated. The usual body takes one pass of msgspec; only a body that
it refuses is read again by the standard library, to tell where and why.

See docs/reference/ollama-api.md#conventions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import msgspec

from vllama.errors import BadRequest

MAX_DEPTH = 256
"""Nesting beyond this is refused: what is read here is encoded again, and rendered by jinja."""

MAX_VALUES = 2_000_000
"""More in one body are refused: 100 MB of `[],` would become gigabytes."""

MAX_MESSAGES = 10_000
"""More in one conversation are refused: each is rendered, perhaps several times, and counted."""

_BRACKETS_OR_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)
_LITERAL = re.compile(r"[tfn][a-z]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_HEX = re.compile(r"[0-9A-Fa-f]*")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def decode_json(body: bytes, *, empty: str = "missing request body") -> object:
    """Decode the first JSON value in `body`.

    Raises BadRequest: `empty` for a body without any, Go's decoder text for a broken one.
    """
    if not body or body.isspace():
        raise BadRequest(empty)
    if len(body) > MAX_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise BadRequest(f"cannot read the request: it holds more than {MAX_VALUES} values")
    slow = False
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise BadRequest("exceeded max depth") from None
    except ValueError:  # msgspec's own errors and UnicodeDecodeError
        value, slow = _decode_slowly(body), True
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        _check_depth(value)
    return _without_surrogates(value) if slow else value


def decode_object(
    body: bytes, go_type: str, *, empty: str = "missing request body"
) -> dict[str, object]:
    """Decode a body that must be an object; null is an empty one. Raises BadRequest."""
    value = decode_json(body, empty=empty)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"json: cannot unmarshal {kind(value)} into Go value of type {go_type}")
    return value


def encode_json(value: object) -> bytes:
    """Encode compactly. Raises BadRequest for what cannot be (it came from the client)."""
    try:
        return msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadRequest(f"cannot encode the request: {error}") from None


def kind(value: object) -> str:
    """Name a JSON value's type as Go does."""
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case _:
            return "object"


def fold(source: Mapping[str, object], known: Iterable[str]) -> dict[str, object]:
    """Return the `known` fields of `source`, written in any case; null is absent, the last wins."""
    fields = known if isinstance(known, frozenset) else frozenset(known)
    out: dict[str, object] = {}
    for key, value in source.items():
        name = key if key in fields else key.lower()
        if value is not None and name in fields:
            out[name] = value
    return out


def check_messages(messages: Sequence[object]) -> None:
    """Raise BadRequest if a conversation has too many messages."""
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(
            f"cannot read the request: it has {len(messages)} messages, {MAX_MESSAGES} are the most"
        )


class Fields:
    """Typed access to one folded object; a wrong type raises BadRequest with Go's text."""

    __slots__ = ("_data", "_struct")

    def __init__(self, data: Mapping[str, object], struct: str) -> None:
        self._data = data
        self._struct = struct

    def __iter__(self) -> Iterator[str]:
        """Give the names of the fields that are there, in their order."""
        return iter(self._data)

    def raw(self, name: str) -> object:
        """Return the value as it came, or None."""
        return self._data.get(name)

    def refuse(self, name: str, value: object, go_type: str) -> NoReturn:
        """Raise the error that Go gives for `value` in field `name`."""
        found = kind(value)
        if found == "number" and go_type == "int":  # Go shows what does not fit into one
            found = f"number {encode_json(value).decode()}"
        raise BadRequest(
            f"json: cannot unmarshal {found} into Go struct field "
            f"{self._struct}.{name} of type {go_type}"
        )

    def text(self, name: str, default: str = "") -> str:
        """Return a string field."""
        value = self._data.get(name, default)
        return value if isinstance(value, str) else self.refuse(name, value, "string")

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean field."""
        value = self._data.get(name, default)
        return value if isinstance(value, bool) else self.refuse(name, value, "bool")

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer field; `3.0` is one, `3.5` is not."""
        return self._integer(name, self._data.get(name, default))

    def integers(self, name: str) -> list[int]:
        """Return an array of integers, [] when absent."""
        return [self._integer(name, item) for item in self.items(name, "[]int")]

    def _integer(self, name: str, value: object) -> int:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(name, value, "int")
        return value

    def items(self, name: str, go_type: str) -> list[object]:
        """Return an array field, [] when absent."""
        value = self._data.get(name)
        if value is None:
            return []
        return value if isinstance(value, list) else self.refuse(name, value, go_type)

    def mapping(self, name: str, go_type: str) -> dict[str, object]:
        """Return an object field, {} when absent."""
        value = self._data.get(name)
        if value is None:
            return {}
        return value if isinstance(value, dict) else self.refuse(name, value, go_type)


def _decode_slowly(body: bytes) -> object:
    text = body.decode(errors="replace")  # as Go does
    start = _end(_SPACE, text, 0)
    try:
        value, _ = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise BadRequest(_go_text(error)) from None
    except RecursionError:
        raise BadRequest("exceeded max depth") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise BadRequest("json: cannot unmarshal number into Go value of type float64") from None
    return value


def _without_surrogates(value: object) -> object:
    """Replace lone surrogates (`\\ud800` in the JSON) by U+FFFD, as Go does."""
    match value:
        case str():
            return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
        case list():
            return [_without_surrogates(item) for item in value]
        case dict():
            return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
        case _:
            return value


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"invalid character '{name[0]}' looking for beginning of value")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise BadRequest(
            f"json: cannot unmarshal number {digits[:80]} into Go value of type float64"
        )
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _go_text(error: json.JSONDecodeError) -> str:
    """Word a decoder's complaint as Go's scanner does."""
    text, at = error.doc, error.pos
    complaint = error.msg
    if complaint.startswith("Unterminated string"):
        return "unexpected EOF"
    if complaint.startswith("Expecting value"):
        literal = _LITERAL.match(text, at)
        if literal is not None:
            return _go_literal(text, at)
        where = "looking for beginning of value"
    elif complaint.startswith("Expecting property name"):
        where = "looking for beginning of object key string"
    elif complaint.startswith("Expecting ':'"):
        where = "after object key"
    elif complaint.startswith("Expecting ','"):
        where = f"after {_container(text, at)}"
    elif complaint.startswith("Invalid control"):
        where = "in string literal"
    elif complaint.startswith("Invalid \\u"):
        where = r"in \u hexadecimal character escape"
        at = _end(_HEX, text, at + 1)
    elif complaint.startswith("Invalid"):
        where = "in string escape code"
        at += complaint.startswith("Invalid \\escape")
    else:
        where = "looking for beginning of value"
    if not where.startswith("in "):  # a string has no space between its parts
        at = _end(_SPACE, text, at)
    return f"invalid character {_go_char(text[at])} {where}" if at < len(text) else "unexpected EOF"


def _go_literal(text: str, at: int) -> str:
    word = next(w for w in ("true", "false", "null") if w[0] == text[at])
    for offset, letter in enumerate(word):
        if at + offset >= len(text):
            return "unexpected EOF"
        found = text[at + offset]
        if found != letter:
            return f"invalid character {_go_char(found)} in literal {word} (expecting '{letter}')"
    return "unexpected EOF"


def _go_char(char: str) -> str:
    if char == "'":
        return r"'\''"
    if char == '"':
        return "'\"'"
    return repr(char)


def _container(text: str, end: int) -> str:
    """Tell what the position is in, by walking over the strings and brackets before it."""
    stack: list[str] = []
    for match in _BRACKETS_OR_STRING.finditer(text, 0, end):
        token = match.group()
        if token in "{[":
            stack.append(token)
        elif token in "}]" and stack:
            stack.pop()
    return "object key:value pair" if stack and stack[-1] == "{" else "array element"


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _check_depth(value: object) -> None:
    """Raise BadRequest if `value` nests too deeply; iterative, one visit a container."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(v for v in item.values() if isinstance(v, dict | list))
            elif isinstance(item, list):
                below.extend(v for v in item if isinstance(v, dict | list))
        if not below:
            return
        level = below
    raise BadRequest("exceeded max depth")
