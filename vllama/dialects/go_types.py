"""What a type of Go's does with a value of JSON, and its words for what does not fit.

Ollama decodes every body into a struct, and its clients show the decoder's errors. A walk through a
document follows Go (1.26, `decode.go`): the first mismatch is reported, unless a type that decodes
itself fails, which ends the decoding at once. `go_values` has the types, `go_structs` those with
fields, which bodies are decoded into.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeAlias

import msgspec

from vllama.chat.go_json import kind


class GoError(ValueError):
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
    """Where the decoding is in a document, and the first mismatch that it found."""

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


Schema: TypeAlias = dict[str, Any]
"""A JSON Schema (2020-12), or a part of one."""


class GoType(Protocol):
    """A type: it decodes values, and it is described for the API's documentation."""

    def __call__(self, value: object, walk: Walk, /) -> Any:
        """Return what a value means; save a mismatch, or raise GoError to end the decoding."""

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema; the structs that it refers to are added to `structs`, by name."""


def make_enum(*values: str | bool | None) -> Schema:
    """Return the schema of one of these values; generators of clients want types of one kind."""
    texts = [value for value in values if isinstance(value, str)]
    schema: Schema = {"type": "string", "enum": texts}
    if any(isinstance(value, bool) for value in values):
        schema = {"anyOf": [{"type": "boolean"}, schema]}
    return (
        {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]} if None in values else schema
    )


def make_nullable(schema: Schema) -> Schema:
    """Return the schema of a value that may be null, which Go reads as nothing."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    if "$ref" in schema or "anyOf" in schema:
        return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
    return schema


def find_error(value: object, go_type: GoType) -> GoError | None:
    """Return why a value cannot be decoded into a type of its own; None: it can."""
    walk = Walk()
    try:
        go_type(value, walk)
    except GoError as error:
        walk.place(error)
        return error
    return walk.first


class Part(Protocol):
    """A class of values that msgspec cannot decode by itself: `go_type` does."""

    go_type: ClassVar[GoType]

    def __init__(self, value: Any, /) -> None:
        """Make one of a value that `go_type` decoded."""


def decode_part(part: type[Part], value: object) -> object:
    """Decode a value of a `Part`, for msgspec. Raises GoError."""
    walk = Walk()
    found = part.go_type(value, walk)
    if walk.first is not None:
        raise walk.first
    return found if isinstance(found, part) else part(found)


def is_convertible(value: object, python_type: Any) -> bool:
    """Return whether msgspec sees that a decoded value is of a type, without its words."""
    try:
        msgspec.convert(value, python_type, dec_hook=decode_part)
    except (ValueError, RecursionError):
        return False
    return True
