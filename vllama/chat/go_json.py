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
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from vllama.base.errors import BadRequest

MAX_DEPTH = 256
"""Nesting beyond this is refused: what is read here is encoded again, and rendered by jinja."""

MAX_VALUES = 500_000
"""More in one body are refused: what is read in one piece keeps all other clients waiting."""

MAX_NAMES = 200_000
"""More names of fields, lists and objects are refused; they cost more than other values."""

MAX_DIGITS = 8 * MAX_VALUES
"""More in all numbers together are refused: long ones cost up to 80 ns a digit."""

MAX_ESCAPES = 500_000
"""More in a body that msgspec refuses are not read again to tell what is wrong with it."""

MAX_MESSAGES = 10_000
"""More in one conversation are refused: each is rendered, perhaps several times, and counted."""

MAX_TOOLS = 1000

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
    if has_too_many_values(body):
        raise BadRequest(
            f"cannot read the request: it has more than {MAX_VALUES} values, {MAX_NAMES} names, "
            f"lists and objects, or {MAX_DIGITS} digits in numbers"
        )
    slow = False
    try:
        value = _decode(body)
    except RecursionError:
        raise BadRequest("exceeded max depth") from None
    except ValueError as error:  # msgspec's own errors and UnicodeDecodeError
        if body.count(b"\\") > MAX_ESCAPES:
            raise BadRequest(f"cannot read the request: {error}") from None
        value, slow = _decode_slowly(body), True
    if _most_depth(body) > MAX_DEPTH:
        _check_depth(value)
    return _without_surrogates(value) if slow else value


def may_decode_at_once(body: bytes) -> bool:
    """Return whether a body is within all limits without a closer look."""
    return not has_too_many_values(body) and _most_depth(body) <= MAX_DEPTH


def _most_depth(body: bytes) -> int:
    """Return a bound of the nesting: all brackets, but each that only follows another's end."""
    return sum(map(body.count, (b"{", b"["))) - sum(map(body.count, (b"},{", b"}, {")))


def decode_value(text: bytes | str) -> Any:
    """Decode what an engine has written, or what was read before. Raises ValueError and kin."""
    raw = text.encode() if isinstance(text, str) else text
    if has_too_many_values(raw):
        raise ValueError("too many values")
    return _decode(raw)


def has_too_many_values(body: bytes) -> bool:
    """Return whether JSON has more than may be decoded in one piece."""
    if len(body) <= MAX_DIGITS and (len(body) <= MAX_NAMES or not _exceeds(body)):
        return False
    rest = _without_strings(body)
    return _exceeds(rest) or len(rest) - len(rest.translate(None, b"0123456789")) > MAX_DIGITS


def _exceeds(body: bytes) -> bool:
    names = sum(map(body.count, (b":", b"[", b"{")))
    return names > MAX_NAMES or body.count(b",") > MAX_VALUES


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


def check_messages(messages: Sequence[object]) -> None:
    """Raise BadRequest if a conversation has too many messages."""
    _check_count(messages, "messages", MAX_MESSAGES)


def check_tools(tools: Sequence[object]) -> None:
    """Raise BadRequest if a request has too many tools."""
    _check_count(tools, "tools", MAX_TOOLS)


def _check_count(items: Sequence[object], name: str, most: int) -> None:
    if len(items) > most:
        raise BadRequest(
            f"cannot read the request: it has {len(items)} {name}, {most} are the most"
        )


def _without_strings(body: bytes) -> bytes:
    """Return what is outside of strings; if there are too many of them, the body as it is."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > 2 * (MAX_VALUES + MAX_NAMES):
        return body
    return b"".join(body.split(b'"')[::2])


def _decode_slowly(body: bytes) -> object:
    text = body.decode(errors="replace")  # as Go does
    start = _end(_SPACE, text, 0)
    try:
        value, _ = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise BadRequest(_go_text(error)) from None
    except RecursionError:
        raise BadRequest("exceeded max depth") from None
    except _Infinite as error:
        raise BadRequest(str(error)) from None
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


class _Infinite(ValueError):
    pass


def read_float(digits: str) -> float:
    """Return a number with a fraction. Raises ValueError for what is too large for a float."""
    value = float(digits)
    if math.isinf(value):
        raise _Infinite(
            f"json: cannot unmarshal number {digits[:80]} into Go value of type float64"
        )
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=read_float)
# msgspec's own reader of fractions takes up to 40 µs for one near the largest or smallest
_decode = msgspec.json.Decoder(float_hook=read_float).decode


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
