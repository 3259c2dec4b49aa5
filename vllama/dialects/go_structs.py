"""Bodies decoded into structs, as Go decodes them.

Each dialect declares its structs in a `request_types` module. msgspec decodes a body; only what it
refuses is walked, field by field, to say what Go says (`go_types`), or to take what Go takes and
msgspec does not: names in any case, unknown fields, and null, which is absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from types import GenericAlias, UnionType
from typing import Annotated, Any, ClassVar, Generic, TypeVar, Union, get_args, get_origin

import msgspec

from vllama.base.errors import BadRequest
from vllama.chat.engine.request_fields import check_code
from vllama.chat.go_json import decode_json, may_decode_at_once, read_float
from vllama.dialects.go_types import (
    GoError,
    GoType,
    Schema,
    Walk,
    decode_part,
    find_error,
    is_convertible,
    make_nullable,
)
from vllama.dialects.go_values import ListOf, MapOf, anything, boolean, float64, integer, string


class GoStruct(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base of what bodies are decoded into: fields with their types, all of them optional.

    `go_name` is the struct's name in Go with its package, `go_shown` how Go shows one without a
    name: as its source; `api_name` is its name in `/openapi.json`. Null is absent, as with Go: a
    field has no null of its own.
    """

    go_name: ClassVar[str] = ""
    go_shown: ClassVar[str] = ""
    api_name: ClassVar[str] = ""


T = TypeVar("T", bound=GoStruct)


class Struct(Generic[T]):
    """How a struct is decoded: by msgspec if everything fits, else field by field as Go does."""

    def __init__(self, python_type: type[T]) -> None:
        self.type = python_type
        self.name = python_type.go_name
        self._shown = python_type.go_shown or self.name
        self._name = self.name.rpartition(".")[2]

    @cached_property
    def fields(self) -> Mapping[str, GoType]:
        """The types of the fields, by their JSON names."""
        found = msgspec.structs.fields(self.type)
        return {field.encode_name: _find_named(field.type)[0] for field in found}

    @cached_property
    def _exact(self) -> dict[str, str]:
        return {field.lower(): field for field in self.fields}

    @cached_property
    def _attributes(self) -> dict[str, str]:
        return {field.encode_name: field.name for field in msgspec.structs.fields(self.type)}

    @cached_property
    def decode(self) -> Callable[[bytes], T]:
        """The fast way. Raises ValueError or RecursionError for what it does not read as Go."""
        decoder = msgspec.json.Decoder(self.type, dec_hook=decode_part, float_hook=read_float)
        return decoder.decode

    def find_name(self, key: str) -> str | None:
        """Return the field that a key means, in any case."""
        return key if key in self.fields else self._exact.get(key.lower())

    def fits(self, value: Mapping[str, object]) -> bool:
        """Return whether msgspec sees that the fields of a decoded object have their types."""
        known = {key: item for key, item in value.items() if key in self.fields}
        if len(known) < len(value) and any(
            self.find_name(key) for key in value if key not in known
        ):
            return False
        return is_convertible(known, self.type)

    def __call__(self, value: object, walk: Walk) -> T | None:
        """Decode an object in the order of the document; fields of other names are ignored."""
        if value is None:
            return None
        if not isinstance(value, dict):
            walk.refuse(value, self._shown)
            return None
        before, given = walk.struct, {}
        for key, item in value.items():
            name = self.find_name(key)
            if name is None:
                continue
            walk.struct = self._name
            walk.path.append(name)
            found = self.fields[name](item, walk)
            walk.path.pop()
            if found is not None:
                given[self._attributes[name]] = found
        walk.struct = before
        return self.type(**given)

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return a reference to the struct, or the schema of one without a name."""
        name = self.type.api_name or self.name
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
        text = {"description": self.type.__doc__} if self.type.__doc__ else {}
        return {"type": "object", "properties": fields, **text}


def find_struct(python_type: type[T]) -> Struct[T]:
    """Return how a struct is decoded, always the same of one."""
    if python_type not in _structs:
        _structs[python_type] = Struct(python_type)
    return _structs[python_type]


_structs: dict[type[GoStruct], Struct[Any]] = {}


def make_struct(go_name: str, about: str = "", /, *, go_shown: str = "", **fields: Any) -> Any:
    """Make a struct for values that are checked, and stay as they are; `fields` are type hints.

    `about` is what `/openapi.json` says of it.
    """
    named = [
        (re.sub(r"\W", "_", name), hint, msgspec.field(default=None, name=name))
        for name, hint in fields.items()
    ]
    names = {"go_name": go_name, "go_shown": go_shown, "__doc__": about}
    return msgspec.defstruct(go_name or "Struct", named, bases=(GoStruct,), namespace=names)


def list_of(item: Any) -> Any:
    """Return the hint of a list, of which Go reads a null item as its zero value."""
    return GenericAlias(list, (item | None,))


_PLAIN: Mapping[Any, tuple[GoType, str]] = {
    str: (string, "string"),
    bool: (boolean, "bool"),
    int: (integer, "int"),
    float: (float64, "float64"),
    Any: (anything, "interface {}"),
}


def _find_named(hint: Any) -> tuple[GoType, str]:
    """Return the type of Go's that the hint of a field stands for, with its name in Go."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, GoStruct):
        return find_struct(hint), hint.go_name
    if hasattr(hint, "go_type"):  # a `Part`
        return hint.go_type, ""
    inner = get_args(hint)
    match get_origin(hint):
        case origin if origin is Annotated:
            named = next((mark for mark in inner[1:] if not isinstance(mark, msgspec.Meta)), None)
            return _find_named(inner[0]) if named is None else (named, "")
        case origin if origin in (Union, UnionType):  # with None
            return _find_named(inner[0])
        case origin if origin is list:
            item, name = _find_named(inner[0])
            return ListOf(item, f"[]{name}"), f"[]{name}"
        case origin if origin is dict:
            item, name = _find_named(inner[1])
            return MapOf(item, f"map[string]{name}"), f"map[string]{name}"
    raise TypeError(f"no type of Go's is known for {hint!r}")


def decode_request(body: bytes, struct: Struct[T], *, empty: str = "missing request body") -> T:
    """Decode a body. What is not as msgspec wants it is read again, to say or do what Go does.

    Raises BadRequest: `empty` for a body without any value, otherwise Go's text; and Forbidden for
    a field that may be code.
    """
    found: T | None = None
    if may_decode_at_once(body):
        try:
            found = struct.decode(body)
        except (ValueError, RecursionError):
            found = None  # what is wrong is said below, if anything is
    if found is not None:
        return found
    value = decode_json(body, empty=empty)
    _check_unknown(value, struct)
    walk = Walk()
    try:
        found = struct(value, walk)
    except GoError as error:
        walk.place(error)
        raise BadRequest(str(error)) from None
    if walk.first is not None:
        raise BadRequest(str(walk.first))
    return struct.type() if found is None else found


def decode_body(
    body: bytes, struct: Struct[Any], *, empty: str = "missing request body"
) -> dict[str, object]:
    """Decode a body with all its fields as they are; those of `struct` have the right types.

    Raises as `decode_request` does.
    """
    value = decode_json(body, empty=empty)
    _check_unknown(value, struct)
    if isinstance(value, dict) and struct.fits(value):
        return value
    error = find_error(value, struct)
    if error is not None:
        raise BadRequest(str(error))
    return value if isinstance(value, dict) else {}


def _check_unknown(value: object, struct: Struct[Any]) -> None:
    if isinstance(value, dict):
        unknown = {name: x for name, x in value.items() if name not in struct.fields}
        if unknown:
            check_code(unknown)
