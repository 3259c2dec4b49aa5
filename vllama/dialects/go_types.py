"""The types of a request's fields, checked as Go's `encoding/json` checks them.

Ollama decodes every body into a struct, and its clients show the decoder's errors. Each dialect
declares its structs in a `request_types` module; `decode_request` refuses what does not fit, with
the text and in the order of Go (1.26, `decode.go`): the first mismatch of the document is reported,
unless a type that decodes itself fails, which ends the decoding at once.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from vllama.chat.go_json import check_messages, decode_json, encode_json, kind
from vllama.errors import BadRequest

_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=\r\n]")
_MAX_INT = 2**63 - 1
_MAX_FLOAT32 = 3.4028235677973366e38  # what rounds to more is no float32


class GoError(Exception):
    """What a decoder refuses, in words that no context changes."""


class Mismatch(GoError):
    """A value of the wrong type: Go's `UnmarshalTypeError`."""

    def __init__(self, found: str, go_type: str) -> None:
        super().__init__(found, go_type)
        self.found, self.go_type = found, go_type
        self.struct = self.field = ""

    def __str__(self) -> str:
        """Return Go's text."""
        place = f"struct field {self.struct}.{self.field}" if self.struct or self.field else "value"
        return f"json: cannot unmarshal {self.found} into Go {place} of type {self.go_type}"


class Walk:
    """Where the check is in a document, and the first mismatch that it found."""

    __slots__ = ("first", "path", "struct")

    def __init__(self) -> None:
        self.struct = ""
        self.path: list[str] = []
        self.first: GoError | None = None

    def save(self, error: GoError) -> None:
        """Keep the first error; the rest of the document is still decoded."""
        if self.first is None:
            self.place(error)
            self.first = error

    def place(self, error: GoError) -> None:
        """Tell a mismatch where it is: an outer struct takes the place of an inner one."""
        if isinstance(error, Mismatch) and (self.struct or self.path):
            error.struct = self.struct
            error.field = ".".join([*self.path, error.field] if error.field else self.path)

    def refuse(self, value: object, go_type: str) -> None:
        """Save that `value` is not of the type."""
        self.save(Mismatch(kind(value), go_type))


GoType: TypeAlias = Callable[[object, Walk], None]
"""Checks one value. Saves a mismatch, or raises GoError to end the decoding."""


class Struct:
    """A Go struct: its name with its package, and the types of its fields by their JSON names."""

    def __init__(self, name: str, fields: Mapping[str, GoType], *, shown: str = "") -> None:
        self.fields = dict(fields)
        self._shown = shown or name  # a struct without a name is shown as its source
        self._name = name.rpartition(".")[2]
        self._exact = {field.lower(): field for field in self.fields}

    def add(self, field: str, go_type: GoType) -> None:
        """Add a field whose type contains the struct itself."""
        self.fields[field] = go_type
        self._exact[field.lower()] = field

    def __call__(self, value: object, walk: Walk) -> None:
        """Check an object's fields in the order of the document; others are ignored."""
        if value is None:
            return
        if not isinstance(value, dict):
            walk.refuse(value, self._shown)
            return
        before = walk.struct
        for key, item in value.items():
            name = key if key in self.fields else self._exact.get(key.lower())
            if name is None:
                continue
            walk.struct = self._name
            walk.path.append(name)
            self.fields[name](item, walk)
            walk.path.pop()
        walk.struct = before

    def fold(self, source: Mapping[str, object]) -> dict[str, object]:
        """Return the fields that `source` has, by their names; null is absent, the last wins."""
        out: dict[str, object] = {}
        for key, value in source.items():
            name = key if key in self.fields else self._exact.get(key.lower())
            if name is not None and value is not None:
                out[name] = value
        return out


def decode_request(
    body: bytes, struct: Struct, *, empty: str = "missing request body"
) -> dict[str, object]:
    """Decode a body and return the fields of `struct` that it has, whose types are right.

    Raises BadRequest: `empty` for a body without any value, otherwise Go's text.
    """
    return struct.fold(decode_body(body, struct, empty=empty))


def decode_body(
    body: bytes, struct: Struct, *, empty: str = "missing request body"
) -> dict[str, object]:
    """Decode a body with all its fields as they are; those of `struct` have the right types.

    Raises BadRequest as `decode_request` does.
    """
    value = decode_json(body, empty=empty)
    error = find_error(value, struct)
    if error is not None:
        raise BadRequest(str(error))
    return value if isinstance(value, dict) else {}


def find_error(value: object, go_type: GoType) -> GoError | None:
    """Return why a value cannot be decoded into a type of its own; None: it can."""
    walk = Walk()
    try:
        go_type(value, walk)
    except GoError as error:
        walk.place(error)
        return error
    return walk.first


def decodes_itself(go_type: GoType) -> GoType:
    """Return a type with an UnmarshalJSON of its own, which decodes its value as `go_type`."""

    def check(value: object, walk: Walk) -> None:
        error = find_error(value, go_type)
        if error is not None:
            raise error

    return check


def anything(value: object, walk: Walk) -> None:
    """Check nothing: `any`, or JSON that is kept as it is."""


def string(value: object, walk: Walk) -> None:
    """Check a `string`."""
    if value is not None and not isinstance(value, str):
        walk.refuse(value, "string")


def boolean(value: object, walk: Walk) -> None:
    """Check a `bool`."""
    if value is not None and not isinstance(value, bool):
        walk.refuse(value, "bool")


def integer(value: object, walk: Walk) -> None:
    """Check an `int`. Unlike with Go, `3.0` is one: some clients know only one kind of number."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        walk.refuse(value, "int")
    elif (isinstance(value, float) and not value.is_integer()) or abs(value) > _MAX_INT:
        walk.save(Mismatch(f"number {encode_json(value).decode()}", "int"))


def float64(value: object, walk: Walk) -> None:
    """Check a `float64`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        walk.refuse(value, "float64")


def float32(value: object, walk: Walk) -> None:
    """Check a `float32`."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        walk.refuse(value, "float32")
    elif abs(value) >= _MAX_FLOAT32:
        walk.save(Mismatch(f"number {encode_json(value).decode()}", "float32"))


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


def list_of(item: GoType, name: str) -> GoType:
    """Return the type of a list; `name` is Go's, such as `[]string`."""

    def check(value: object, walk: Walk) -> None:
        if value is None:
            return
        if not isinstance(value, list):
            walk.refuse(value, name)
            return
        for one in value:
            item(one, walk)

    return check


def messages_of(item: GoType, name: str) -> GoType:
    """Return the type of a list of messages, of which there may only be so many."""
    check_items = list_of(item, name)

    def check(value: object, walk: Walk) -> None:
        if isinstance(value, list):
            check_messages(value)
        check_items(value, walk)

    return check


def map_of(item: GoType, name: str) -> GoType:
    """Return the type of a map of strings; `name` is Go's, such as `map[string]string`."""

    def check(value: object, walk: Walk) -> None:
        if value is None:
            return
        if not isinstance(value, dict):
            walk.refuse(value, name)
            return
        for one in value.values():
            item(one, walk)

    return check


def ordered_map_of(item: GoType) -> GoType:
    """Return the type of a map that keeps its order, which decodes itself and its values."""

    def check(value: object, walk: Walk) -> None:
        if value is None:
            return
        if not isinstance(value, dict):
            raise GoError("Value looks like object, but can't find closing '}' symbol")
        for one in value.values():
            error = find_error(one, item)
            if error is not None:
                raise error

    return check


def one_of(*types: GoType) -> GoType:
    """Return a type that decodes itself as the first of `types` that fits; the last one's error."""

    def check(value: object, walk: Walk) -> None:
        error: GoError | None = None
        for go_type in types:
            error = find_error(value, go_type)
            if error is None:
                return
        if error is not None:
            raise error

    return check


STRINGS = list_of(string, "[]string")
ANY_MAP = map_of(anything, "map[string]interface {}")
