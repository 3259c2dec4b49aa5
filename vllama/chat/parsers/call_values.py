"""Tool calls out of decoded values: the one place that decides what a call is."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from vllama.chat.bodies import decode_value

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
# models write line breaks into strings as they are
_DECODER = json.JSONDecoder(strict=False)
_SPACE = re.compile(r"\s*+")

Named: TypeAlias = tuple[str, dict[str, object]]
"""A call as a syntax reads it: name and arguments."""

Found: TypeAlias = tuple[list[Named], int]
"""Calls and where the text goes on after them."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a model asked for. `id` is "" when the client gave none.

    `text`: the arguments as the client wrote them, where it wrote JSON in a string; they need not
    be an object, and engines are sent them unchanged. `extra`: other fields of the call.
    """

    id: str = ""
    name: str
    arguments: dict[str, object] = msgspec.field(default_factory=dict)
    index: int = 0
    text: str = ""
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Form(StrEnum):
    """Form of a family's calls, where the marker alone does not decide."""

    TAGGED = "tagged"
    NAMED = "named"  # name and arguments; the marker before is a token that engines leave out
    RECIPIENT = "recipient"  # functionary: `>>>name`, and `all` for the reader
    ACTION = "action"  # Command-R: `Action:` and a block of JSON
    BARE = "bare"  # Llama: nothing but the JSON, or a list of calls in Python


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolset:
    """The tools of a request whose calls vllama looks for in the answer.

    `schemas` maps names to the JSON schemas of their arguments; empty: names are not known, any
    is taken. `most` bounds the calls of an answer. `forced`: the answer is constrained by a grammar
    to be a call, from its first token. `markers` are those of the model's family, none: any may be.
    `after_text`: a call may end a line of text; else, as the family is not known, it begins a line.
    """

    schemas: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    form: Form = Form.TAGGED
    most: int | None = None
    forced: bool = False
    markers: frozenset[str] = frozenset()
    after_text: bool = True

    @property
    def takes_json(self) -> bool:
        """True if JSON without a marker may be a call."""
        return self.forced or self.form in (Form.BARE, Form.NAMED)

    def knows(self, name: object) -> bool:
        """Tell whether `name` may be a tool's."""
        return isinstance(name, str) and bool(name) and (not self.schemas or name in self.schemas)


def make_call_id() -> str:
    """Make an id as Ollama's: `call_` and 8 random alphanumerics.

    The same call may come again in a later turn, and clients find a call's result by its id.
    """
    return "call_" + "".join(secrets.choice(_ALPHABET) for _ in range(8))


def short_id(identity: str) -> str:
    """Make an id of nine alphanumerics out of another; one that is so already stays."""
    if len(identity) == 9 and identity.isascii() and identity.isalnum():
        return identity
    seed = identity.encode("utf-8", "surrogatepass")
    number = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
    letters = []
    for _ in range(9):
        number, rest = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[rest])
    return "".join(letters)


def make_call(named: Named, position: int) -> ToolCall:
    """Number a call that was read."""
    name, arguments = named
    return ToolCall(id=make_call_id(), name=name, arguments=arguments, index=position)


def write_call(name: str, arguments: Mapping[str, object] | str) -> str:
    """Write text that cannot be a call; `arguments` may be a model's own words."""
    given = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return f'{{"name": {msgspec.json.encode(name).decode()}, "arguments": {given}}}'


def skip(text: str, at: int) -> int:
    """Return the place after white space."""
    space = _SPACE.match(text, at)
    return space.end() if space else at


def decode_at(text: str, at: int) -> tuple[object, int] | None:
    """Decode the JSON value at `at`; None if there is none."""
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def calls_of(value: object) -> list[Named] | None:
    """Read a decoded value: a call, a list of calls, or an object that holds such a list.

    None if anything in it is no call.
    """
    if isinstance(value, dict) and len(value) == 1:
        ((name, inner),) = value.items()
        value = inner if name in ("tool_calls", "tool_call") else value
    found = []
    for item in value if isinstance(value, list) else [value]:
        call = _call(item)
        if call is None:
            return None
        found.append(call)
    return found


def _call(item: object) -> Named | None:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict):
        return None
    name = next((item[key] for key in ("name", "tool_name", "function") if key in item), None)
    given: object = next(
        (item[key] for key in ("arguments", "parameters", "args") if key in item), None
    )
    arguments = object_of(given)
    if not isinstance(name, str) or not name or arguments is None:
        return None
    return name, arguments


def object_of(value: object) -> dict[str, object] | None:
    """Return arguments as an object, also if they were encoded once or twice; else None."""
    for _ in range(2):  # encoded twice: seen with small models
        if isinstance(value, str):
            if not value.strip():
                return {}
            try:
                value = decode_value(value)
            except (ValueError, RecursionError):
                return None
    if value is None:
        return {}
    return value if isinstance(value, dict) and encodable(value) else None


def read_input(arguments: str) -> str:
    """Return the text of a custom tool's call, which the model made as one of a function."""
    said = (object_of(arguments) or {}).get("input")
    return said if isinstance(said, str) else arguments  # it is plain, or was cut


def read_twice(arguments: str) -> str:
    """Return an object that was encoded twice as it is encoded once, anything else unchanged."""
    try:
        inner = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return inner if isinstance(inner, str) and object_of(inner) is not None else arguments


def encodable(value: object) -> bool:
    """Tell whether a value can be written as JSON again."""
    try:
        msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError, TypeError):
        return False
    return True


def parse_bare(raw: str, name: str, key: str, tools: Toolset) -> object:
    """Return the value of an argument that a syntax writes as bare text, by the tool's schema.

    Text that the schema calls a string stays as it is; anything else is read as JSON if it is.
    """
    schema = _property(tools.schemas.get(name), key)
    kinds = set(_kinds(schema))
    if kinds == {"string"}:
        return raw
    try:
        value = decode_value(raw)
    except (ValueError, RecursionError):
        value = {"True": True, "False": False, "None": None}.get(raw.strip(), raw)
    if isinstance(value, str | dict | list) or value is None or not kinds:
        return value if encodable(value) else raw
    wanted = kinds & ({"boolean"} if isinstance(value, bool) else {"integer", "number"})
    return value if wanted or "string" not in kinds else raw


def _property(schema: Mapping[str, object] | None, key: str) -> object:
    properties = schema.get("properties") if schema else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def _kinds(schema: object) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    kind = schema.get("type")
    if isinstance(kind, str):
        yield kind
    for one in kind if isinstance(kind, list) else ():
        yield str(one)
    for name in ("anyOf", "oneOf"):
        options = schema.get(name)
        for option in options if isinstance(options, list) else ():
            yield from _kinds(option)
    options = schema.get("enum")
    if kind is None and isinstance(options, list) and all(isinstance(o, str) for o in options):
        yield "string"
