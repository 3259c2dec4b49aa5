"""Go's types of single values, and of lists and maps, as bodies are decoded into them.

See `go_types` for how that works. A function that checks a value decodes it as it is.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import msgspec

from vllama.chat.go_json import encode_json
from vllama.dialects.go_types import (
    GoError,
    GoType,
    Mismatch,
    Schema,
    Walk,
    find_error,
    is_convertible,
    make_nullable,
)

_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=\r\n]")
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_MAX_INT = 2**63 - 1
_MAX_FLOAT32 = 3.4028235677973366e38  # what rounds to more is no float32


class Value:
    """A type without parts: the function that decodes it, and its schema."""

    __slots__ = ("_decode", "_schema")

    def __init__(self, decode: Callable[[object, Walk], object], schema: Schema) -> None:
        self._decode, self._schema = decode, schema

    def __call__(self, value: object, walk: Walk, /) -> object:
        """Decode a value."""
        return self._decode(value, walk)

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return dict(self._schema)


def described(schema: Schema) -> Callable[[Callable[[object, Walk], object]], Value]:
    """Return a decorator that makes a type of a function which decodes values of `schema`."""
    return lambda decode: Value(decode, schema)


@described({})
def anything(value: object, walk: Walk) -> object:
    """Check nothing: `any`, or JSON that is kept as it is."""
    return value


@described({"type": "string"})
def string(value: object, walk: Walk) -> object:
    """Check a `string`."""
    if value is not None and not isinstance(value, str):
        walk.refuse(value, "string")
    return value


@described({"type": "boolean"})
def boolean(value: object, walk: Walk) -> object:
    """Check a `bool`."""
    if value is not None and not isinstance(value, bool):
        walk.refuse(value, "bool")
    return value


@described({"type": "integer", "minimum": -_MAX_INT, "maximum": _MAX_INT})
def integer(value: object, walk: Walk) -> object:
    """Check an `int`. Unlike with Go, `3.0` is one: some clients know only one kind of number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        walk.refuse(value, "int")
        return None
    if (isinstance(value, float) and not value.is_integer()) or abs(value) > _MAX_INT:
        walk.save(Mismatch(f"number {encode_json(value).decode()}", "int"))
        return None
    return int(value)


@described({"type": "number"})
def float64(value: object, walk: Walk) -> object:
    """Check a `float64`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        walk.refuse(value, "float64")
    return value


@described({"type": "number", "minimum": -3.4e38, "maximum": 3.4e38})
def float32(value: object, walk: Walk) -> object:
    """Check a `float32`."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        walk.refuse(value, "float32")
    elif abs(value) >= _MAX_FLOAT32:
        walk.save(Mismatch(f"number {encode_json(value).decode()}", "float32"))
    return value


@described({"type": "string", "contentEncoding": "base64", "pattern": BASE64})
def image_data(value: object, walk: Walk) -> object:
    """Check an `api.ImageData`: bytes, which JSON has in base64 (standard alphabet, padded)."""
    if value is None:
        return None
    if not isinstance(value, str):
        walk.refuse(value, "api.ImageData")
    elif (at := find_base64_error(value)) is not None:
        walk.save(GoError(f"illegal base64 data at input byte {at}"))
    return value


def find_base64_error(text: str) -> int | None:
    """Return where Go's decoder stops reading base64; None: nowhere."""
    lines = text.replace("\n", "").replace("\r", "")  # copies nothing if there are none
    try:
        binascii.a2b_base64(lines, strict_mode=True)
    except ValueError:  # binascii's own, or what is not ASCII
        wrong = _NOT_BASE64.search(text)
        return wrong.start() if wrong is not None else len(lines) // 4 * 4  # the last group's begin
    return None


class ListOf:
    """A list; `name` is Go's, such as `[]string`."""

    def __init__(self, item: GoType, name: str) -> None:
        self._item, self._name = item, name

    def __call__(self, value: object, walk: Walk, /) -> list[Any] | None:
        """Decode a list and its items."""
        if value is None:
            return None
        if not isinstance(value, list):
            walk.refuse(value, self._name)
            return None
        found = []
        for one in value:
            found.append(self._item(one, walk))
            if walk.first is not None and isinstance(self._item, Value):
                break  # no later one can change the error
        return found

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return {"type": "array", "items": make_nullable(self._item.describe(structs))}


class LimitedList(ListOf):
    """A list that `check_count` refuses if it has too many items, with BadRequest."""

    def __init__(
        self, item: GoType, name: str, check_count: Callable[[list[object]], None]
    ) -> None:
        super().__init__(item, name)
        self._check_count = check_count

    def __call__(self, value: object, walk: Walk, /) -> list[Any] | None:
        """Decode the items unless there are too many. Raises BadRequest."""
        if isinstance(value, list):
            self._check_count(value)
        return super().__call__(value, walk)


class MapOf:
    """A map of strings; `name` is Go's, such as `map[string]string`."""

    def __init__(self, item: GoType, name: str) -> None:
        self._item, self._name = item, name

    def __call__(self, value: object, walk: Walk, /) -> dict[str, Any] | None:
        """Decode a map and its values."""
        if value is None:
            return None
        if not isinstance(value, dict):
            walk.refuse(value, self._name)
            return None
        return {name: self._item(one, walk) for name, one in value.items()}

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return _describe_map(self._item, structs)


class OrderedMapOf:
    """A map that keeps its order, which decodes itself and its values."""

    def __init__(self, item: GoType) -> None:
        self._item = item

    def __call__(self, value: object, walk: Walk, /) -> object:
        """Check a map and its values."""
        if value is None:
            return None
        if not isinstance(value, dict):
            raise GoError("Value looks like object, but can't find closing '}' symbol")
        for one in value.values():
            _raise_error(one, self._item)
        return value

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return _describe_map(self._item, structs)


class DecodesItself:
    """A type with an UnmarshalJSON of its own, which decodes its value as another type."""

    def __init__(self, go_type: GoType) -> None:
        self._go_type = go_type

    def __call__(self, value: object, walk: Walk, /) -> Any:
        """Decode a value; a mismatch ends the decoding."""
        inner = Walk()
        try:
            found = self._go_type(value, inner)
        except GoError as error:
            inner.place(error)
            raise
        if inner.first is not None:
            raise inner.first
        return found

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return self._go_type.describe(structs)


class OneOf:
    """A type that decodes itself as the first of several that fits."""

    def __init__(self, *types: GoType) -> None:
        self._types = types

    def __call__(self, value: object, walk: Walk, /) -> object:
        """Check a value; if no type fits, the error is that of the last."""
        if all(find_error(value, go_type) is not None for go_type in self._types[:-1]):
            _raise_error(value, self._types[-1])
        return value

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return {"anyOf": [go_type.describe(structs) for go_type in self._types]}


class Kept:
    """A type whose values are checked and kept as they are, with fields that it does not know."""

    def __init__(self, go_type: GoType, python_type: Any) -> None:
        self._go_type, self._python_type = go_type, python_type

    def __call__(self, value: object, walk: Walk, /) -> object:
        """Check a value, with msgspec if that sees that it fits."""
        if not is_convertible(value, self._python_type):
            self._go_type(value, walk)
        return value

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return self._go_type.describe(structs)


def _raise_error(value: object, go_type: GoType) -> None:
    error = find_error(value, go_type)
    if error is not None:
        raise error


def _describe_map(item: GoType, structs: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": make_nullable(item.describe(structs))}


STRINGS = ListOf(string, "[]string")
ANY_MAP = MapOf(anything, "map[string]interface {}")

Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-_MAX_INT, le=_MAX_INT)]
Float32: TypeAlias = Annotated[float, msgspec.Meta(gt=-_MAX_FLOAT32, lt=_MAX_FLOAT32), float32]
