"""Go's types of single values, and of lists and maps, as requests are checked against them.

See `go_types` for how a check works.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable

from vllama.chat.go_json import check_messages, encode_json
from vllama.dialects.go_types import (
    GoError,
    GoType,
    Mismatch,
    Schema,
    Walk,
    find_error,
    make_nullable,
)

_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=\r\n]")
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_MAX_INT = 2**63 - 1
_MAX_FLOAT32 = 3.4028235677973366e38  # what rounds to more is no float32


class Value:
    """A type without parts: the function that checks it, and its schema."""

    __slots__ = ("_check", "_schema")

    def __init__(self, check: Callable[[object, Walk], None], schema: Schema) -> None:
        self._check, self._schema = check, schema

    def __call__(self, value: object, walk: Walk, /) -> None:
        """Check a value."""
        self._check(value, walk)

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return dict(self._schema)


def described(schema: Schema) -> Callable[[Callable[[object, Walk], None]], Value]:
    """Return a decorator that makes a type of a function which checks values of `schema`."""
    return lambda check: Value(check, schema)


@described({})
def anything(value: object, walk: Walk) -> None:
    """Check nothing: `any`, or JSON that is kept as it is."""


@described({"type": "string"})
def string(value: object, walk: Walk) -> None:
    """Check a `string`."""
    if value is not None and not isinstance(value, str):
        walk.refuse(value, "string")


@described({"type": "boolean"})
def boolean(value: object, walk: Walk) -> None:
    """Check a `bool`."""
    if value is not None and not isinstance(value, bool):
        walk.refuse(value, "bool")


@described({"type": "integer", "minimum": -_MAX_INT, "maximum": _MAX_INT})
def integer(value: object, walk: Walk) -> None:
    """Check an `int`. Unlike with Go, `3.0` is one: some clients know only one kind of number."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        walk.refuse(value, "int")
    elif (isinstance(value, float) and not value.is_integer()) or abs(value) > _MAX_INT:
        walk.save(Mismatch(f"number {encode_json(value).decode()}", "int"))


@described({"type": "number"})
def float64(value: object, walk: Walk) -> None:
    """Check a `float64`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        walk.refuse(value, "float64")


@described({"type": "number", "minimum": -3.4e38, "maximum": 3.4e38})
def float32(value: object, walk: Walk) -> None:
    """Check a `float32`."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        walk.refuse(value, "float32")
    elif abs(value) >= _MAX_FLOAT32:
        walk.save(Mismatch(f"number {encode_json(value).decode()}", "float32"))


@described({"type": "string", "contentEncoding": "base64", "pattern": BASE64})
def image_data(value: object, walk: Walk) -> None:
    """Check an `api.ImageData`: bytes, which JSON has in base64 (standard alphabet, padded)."""
    if value is None:
        return
    if not isinstance(value, str):
        walk.refuse(value, "api.ImageData")
    elif (at := find_base64_error(value)) is not None:
        walk.save(GoError(f"illegal base64 data at input byte {at}"))


def find_base64_error(text: str) -> int | None:
    """Return where Go's decoder stops reading base64; None: nowhere."""
    wrong = _NOT_BASE64.search(text)
    if wrong is not None:
        return wrong.start()
    if "\n" in text or "\r" in text:
        text = text.replace("\n", "").replace("\r", "")
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        return len(text) // 4 * 4  # where the last, incomplete group begins
    return None


class ListOf:
    """A list; `name` is Go's, such as `[]string`."""

    def __init__(self, item: GoType, name: str) -> None:
        self._item, self._name = item, name

    def __call__(self, value: object, walk: Walk, /) -> None:
        """Check a list and its items."""
        if value is None:
            return
        if not isinstance(value, list):
            walk.refuse(value, self._name)
            return
        for one in value:
            self._item(one, walk)

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return {"type": "array", "items": make_nullable(self._item.describe(structs))}


class MessagesOf(ListOf):
    """A list of messages, of which there may only be so many."""

    def __call__(self, value: object, walk: Walk, /) -> None:
        """Check the number of messages, and each of them."""
        if isinstance(value, list):
            check_messages(value)
        super().__call__(value, walk)


class MapOf:
    """A map of strings; `name` is Go's, such as `map[string]string`."""

    def __init__(self, item: GoType, name: str) -> None:
        self._item, self._name = item, name

    def __call__(self, value: object, walk: Walk, /) -> None:
        """Check a map and its values."""
        if value is None:
            return
        if not isinstance(value, dict):
            walk.refuse(value, self._name)
            return
        for one in value.values():
            self._item(one, walk)

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return _describe_map(self._item, structs)


class OrderedMapOf:
    """A map that keeps its order, which decodes itself and its values."""

    def __init__(self, item: GoType) -> None:
        self._item = item

    def __call__(self, value: object, walk: Walk, /) -> None:
        """Check a map and its values."""
        if value is None:
            return
        if not isinstance(value, dict):
            raise GoError("Value looks like object, but can't find closing '}' symbol")
        for one in value.values():
            error = find_error(one, self._item)
            if error is not None:
                raise error

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return _describe_map(self._item, structs)


class DecodesItself:
    """A type with an UnmarshalJSON of its own, which decodes its value as another type."""

    def __init__(self, go_type: GoType) -> None:
        self._go_type = go_type

    def __call__(self, value: object, walk: Walk, /) -> None:
        """Check a value; a mismatch ends the decoding."""
        error = find_error(value, self._go_type)
        if error is not None:
            raise error

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return self._go_type.describe(structs)


class OneOf:
    """A type that decodes itself as the first of several that fits."""

    def __init__(self, *types: GoType) -> None:
        self._types = types

    def __call__(self, value: object, walk: Walk, /) -> None:
        """Check a value; if no type fits, the error is that of the last."""
        error: GoError | None = None
        for go_type in self._types:
            error = find_error(value, go_type)
            if error is None:
                return
        if error is not None:
            raise error

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return {"anyOf": [go_type.describe(structs) for go_type in self._types]}


def _describe_map(item: GoType, structs: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": make_nullable(item.describe(structs))}


STRINGS = ListOf(string, "[]string")
ANY_MAP = MapOf(anything, "map[string]interface {}")
