"""The types of a request's fields, checked as Go's `encoding/json` checks them.

Ollama decodes every body into a struct, and its clients show the decoder's errors. Each dialect
declares its structs in a `request_types` module; `decode_request` refuses what does not fit, with
the text and in the order of Go (1.26, `decode.go`): the first mismatch of the document is reported,
unless a type that decodes itself fails, which ends the decoding at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from vllama.chat.go_json import decode_json, kind
from vllama.errors import BadRequest


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


Schema: TypeAlias = dict[str, Any]
"""A JSON Schema (2020-12), or a part of one."""


class GoType(Protocol):
    """A type: it checks values, and it is described for the API's documentation."""

    def __call__(self, value: object, walk: Walk, /) -> None:
        """Save a mismatch, or raise GoError to end the decoding."""

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema; the structs that it refers to are added to `structs`, by name."""


class Struct:
    """A Go struct: its name with its package, and the types of its fields by their JSON names."""

    def __init__(self, name: str, fields: Mapping[str, GoType], *, shown: str = "") -> None:
        self.name = name
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

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return a reference to the struct, or the schema of one without a name."""
        name = self.name
        if not name:
            return self._describe_fields(structs)
        if name not in structs:
            structs[name] = {}  # the struct may contain itself
            structs[name] = self._describe_fields(structs)
        return {"$ref": f"#/components/schemas/{name}"}

    def _describe_fields(self, structs: dict[str, Schema]) -> Schema:
        fields = {
            name: make_nullable(go_type.describe(structs)) for name, go_type in self.fields.items()
        }
        return {"type": "object", "properties": fields}

    def fold(self, source: Mapping[str, object]) -> dict[str, object]:
        """Return the fields that `source` has, by their names; null is absent, the last wins."""
        out: dict[str, object] = {}
        for key, value in source.items():
            name = key if key in self.fields else self._exact.get(key.lower())
            if name is not None and value is not None:
                out[name] = value
        return out


def make_nullable(schema: Schema) -> Schema:
    """Return the schema of a value that may be null, which Go reads as nothing."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    if "$ref" in schema or "anyOf" in schema:
        return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
    return schema


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
