"""JSON bodies: bytes to structs or to values, within limits.

Names come in any case, null is absent, unknown fields and text after the first value are ignored,
and 3.0 is an integer. msgspec reads the usual body in one pass; a body that it refuses is tidied
and read again. See docs/reference/ollama-api.md#conventions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import DictType, Field, IntType, ListType, Metadata, StructType, UnionType

from vllama.base.errors import BadRequest, ContextOverflow

MAX_DEPTH = 256
"""Nesting beyond this is refused: what is read here is encoded again, and rendered by jinja."""
MAX_VALUES = 500_000
"""More in one body are refused: what is read in one piece keeps all other clients waiting."""
MAX_NAMES = 200_000
"""More names of fields, lists and objects are refused; they cost more than other values."""
MAX_DIGITS = 8 * MAX_VALUES
"""More in all numbers together are refused: long ones cost up to 80 ns a digit."""
MAX_TEXT = 6_000_000
"""Characters that are given to a tokenizer: more than a million tokens, as a list 36 bytes each."""
MAX_ESCAPES = 500_000
"""More in a body that msgspec refuses are not read again to tell what is wrong with it."""
T = TypeVar("T", bound="Body")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - set(_STEPS))
_TIDIED = frozenset((dict, list, float))
_WORDS = re.compile("`([^`]+)`")
_NAMES = {
    "NoneType": "null", "bool": "a boolean", "int": "an integer", "float": "a decimal",
    "str": "a string", "array": "an array", "list": "an array", "object": "an object",
}  # fmt: skip


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The base of structs for bodies. A field of a class of our own calls the class's `read`."""


def decode_struct(body: bytes, python_type: type[T], check: Callable[[dict[str, Any]], None]) -> T:
    """Decode a body; `check` is shown its unknown fields, if it has any. Raises BadRequest."""
    _check_limits(body)
    try:
        found: T = _make_decoder(python_type).decode(body)
        return found
    except ValueError:
        value, known = decode_object(body), python_type.__struct_encode_fields__
    check({name: item for name, item in value.items() if name not in known})
    try:
        return _convert_tidied(value, python_type)
    except msgspec.ValidationError as error:
        raise BadRequest(_explain(error)) from None


def find_error(value: object, python_type: Any) -> str:
    """Return why a decoded value is not of a type; "": it is."""
    try:
        convert(value, python_type)
    except msgspec.ValidationError as error:
        return _explain(error)
    return ""


def convert(value: object, python_type: Any) -> Any:
    """Convert a decoded value. Raises msgspec.ValidationError, also within a class's `read`."""
    try:
        return msgspec.convert(value, python_type, dec_hook=_read_part)
    except msgspec.ValidationError:
        return _convert_tidied(value, python_type)


def decode_object(body: bytes) -> dict[str, Any]:
    """Decode a body that must be an object; null is an empty one. Raises BadRequest."""
    value = decode_json(body)
    if value is None or isinstance(value, dict):
        return value or {}
    raise BadRequest(say_wrong("", f"expected an object, got {name_type(value)}"))


def decode_as(body: bytes, python_type: Any) -> Any:
    """Decode a body that must be an object of a type that is no struct. Raises BadRequest."""
    value = decode_object(body)
    if error := find_error(value, python_type):
        raise BadRequest(error)
    return convert(value, python_type)


def decode_json(body: bytes) -> object:
    """Decode the first JSON value in a body. Raises BadRequest."""
    _check_limits(body)
    try:
        return _decode(body)
    except ValueError as error:  # msgspec's own errors and UnicodeDecodeError
        if body.count(b"\\") > MAX_ESCAPES:
            raise BadRequest(f"cannot read the request: {error}") from None
        return _decode_odd(body)


def decode_value(text: bytes | str) -> Any:
    """Decode what an engine has written, or what was read before. Raises ValueError and kin."""
    if has_too_many_values(text.encode() if isinstance(text, str) else text):
        raise ValueError("too many values")
    return _decode(text)


def encode_json(value: object) -> bytes:
    """Encode compactly. Raises BadRequest for what cannot be (it came from the client)."""
    try:
        return msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadRequest(f"cannot encode the request: {error}") from None


def has_too_many_values(body: bytes) -> bool:
    """Return whether JSON has more than may be decoded in one piece."""
    if len(body) <= MAX_DIGITS and (len(body) <= MAX_NAMES or not _exceeds(body)):
        return False
    rest = _without_strings(body)
    return _exceeds(rest) or len(rest) - len(rest.translate(None, b"0123456789")) > MAX_DIGITS


def read_float(digits: str) -> float:
    """Return a number with a fraction. Raises ValueError for what is too large for a float."""
    if math.isinf(value := float(digits)):
        raise ValueError(f"{digits[:80]} is too large")
    return value


def name_type(value: object) -> str:
    """Return the type of a decoded value: "a string"."""
    return _NAMES.get(type(value).__name__, "an object")


def say_wrong(field: str, problem: str) -> str:
    """Return the sentence for a wrong value; the field "" is the whole body."""
    where = f"'{field}'" if field else "the body"
    return f"Invalid value for {where}: {problem}."


def check_length(characters: int) -> None:
    """Raise BadRequest for a text that is longer than any context."""
    if characters > MAX_TEXT:
        raise ContextOverflow(f"the input is too long: it has more than {MAX_TEXT} characters")


def _check_texts(body: bytes) -> None:
    """Raise BadRequest for a long text before it is decoded; Base64 is none, as of images."""
    start = 0
    while len(body) - start > MAX_TEXT:
        quote = body.rfind(b'"', start, start + MAX_TEXT + 1)
        if quote < 0:
            quote = body.find(b'"', start) % (len(body) + 1)  # without one, the end
            is_ascii = body.isascii()
            if not is_ascii or body.find(b" ", start, quote) >= 0:
                # at least so many: a character has 4 bytes at most, or two escapes of 6
                least = (quote - start) // (1 if is_ascii else 4)
                check_length(least - 6 * body.count(b"\\", start, quote))
        start = quote + 1


def _check_limits(body: bytes) -> None:
    _check_texts(body)
    if has_too_many_values(body):
        raise BadRequest(
            f"cannot read the request: it has more than {MAX_VALUES} values, {MAX_NAMES} names, "
            f"lists and objects, or {MAX_DIGITS} digits in numbers"
        )
    starts = sum(map(body.count, (b"{", b"["))) - sum(map(body.count, (b"},{", b"}, {")))
    if starts > MAX_DEPTH:  # perhaps
        brackets = _without_strings(body).translate(None, _NO_BRACKETS)
        if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH:
            raise BadRequest("cannot read the request: it is nested too deeply")


def _exceeds(body: bytes) -> bool:
    return sum(map(body.count, (b":", b"[", b"{"))) > MAX_NAMES or body.count(b",") > MAX_VALUES


def _without_strings(body: bytes) -> bytes:
    """Return the text outside of strings; if there are too many of them, the body as it is."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > 2 * (MAX_VALUES + MAX_NAMES):
        return body
    return b"".join(body.split(b'"')[::2])


# msgspec's own reader of fractions takes up to 40 µs for one near the largest or smallest
_decode = msgspec.json.Decoder(float_hook=read_float).decode
_inspect: Callable[[Any], Any] = cache(msgspec.inspect.type_info)


def write_well_formed(value: object) -> str:
    """Return a value as JSON in which lone surrogates are U+FFFD."""
    return join_pairs(json.dumps(value, ensure_ascii=False))


def join_pairs(text: str) -> str:
    """Return a text whose surrogates are characters; one that is alone becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _decode_odd(body: bytes) -> object:
    """Decode what msgspec does not: wrong UTF-8, lone surrogates, text after the value."""
    text = body.decode(errors="replace").lstrip()
    if not text:
        raise BadRequest("missing request body")
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
        return _decode(write_well_formed(value))
    except json.JSONDecodeError as error:
        raise BadRequest(f"cannot read the request: invalid JSON: {error}") from None
    except ValueError:
        raise BadRequest("cannot read the request: a number is out of range") from None


@cache
def _make_decoder(python_type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(python_type, dec_hook=_read_part, float_hook=read_float)


def _read_part(part: Any, value: object) -> object:
    try:
        return part.read(value)
    except msgspec.ValidationError as error:  # to which msgspec would not add where this is
        raise ValueError(str(error)) from None


@cache
def _list_fields(python_type: Any) -> dict[str, Field]:
    """Return the fields of a struct by their names as they are, and in lower case."""
    found = {field.encode_name: field for field in _inspect(python_type).fields}
    return {name.lower(): field for name, field in found.items()} | found


def _convert_tidied(value: object, python_type: type[T]) -> T:
    return msgspec.convert(_tidy(value, _inspect(python_type)), python_type, dec_hook=_read_part)


def _tidy(value: object, kind: Any) -> object:
    """Return a value as msgspec wants it: known names, no nulls, and integers without fraction."""
    if type(value) not in _TIDIED:
        return value
    match kind:
        case IntType() if isinstance(value, float) and value.is_integer():
            return int(value)
        case UnionType():
            for one in kind.types:
                value = _tidy(value, one)
        case StructType() if isinstance(value, dict) and value.get(kind.tag_field) == kind.tag:
            tag = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
            return tag | _tidy_fields(value, kind.cls)
        case DictType() if isinstance(value, dict):
            return {name: _tidy(item, kind.value_type) for name, item in value.items()}
        case ListType() if isinstance(value, list):
            if len(value) <= (kind.max_length or MAX_VALUES) and _TIDIED & set(map(type, value)):
                return [_tidy(item, kind.item_type) for item in value]
        case Metadata():
            return _tidy(value, kind.type)
    return value


def _tidy_fields(value: dict[str, object], python_type: Any) -> dict[str, object]:
    fields, tidied = _list_fields(python_type), {}
    for name, item in value.items():
        field = fields.get(name) or fields.get(name.lower())
        if field and (item is not None or field.required):  # which may be null, but not absent
            tidied[field.encode_name] = _tidy(item, field.type)
    return tidied


def _explain(error: msgspec.ValidationError) -> str:
    """Describe an error and its place; the path of a value within a class's `read` comes first."""
    problem, *paths = str(error).split(" - at `$")
    field = "".join(path.removesuffix("`") for path in reversed(paths)).removeprefix(".")
    problem = _WORDS.sub(lambda match: _name_words(match[1]), problem)
    return say_wrong(field, problem[0].lower() + problem[1:])


def _name_words(words: str) -> str:
    names = words.removesuffix(" | null").split(" | ")
    return " or ".join(_NAMES.get(name, name) for name in names)
