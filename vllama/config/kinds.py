"""The kinds of values that settings take: how each is read, written, shown in help and described.

A kind reads text from a flag or a variable. The config file may give lists and tables to the kinds
that are marked so. `schema` is the kind in JSON Schema, for editors that complete the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllama.base.units import format_go_duration, parse_bytes, write_bytes
from vllama.config import parse
from vllama.models.settings import UpstreamTraits

Schema = Mapping[str, Any]

KV_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "fp8")


def write_value(value: object) -> str:
    """Write a value as a user would; a table within a table as `name=value name=value`."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={write_value(item)}" for name, item in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_duration(value: object) -> str:
    """Write seconds as `5m` or `1h30m`; infinite ones as -1."""
    seconds = float(str(value))
    if math.isinf(seconds):
        return "-1"
    text = format_go_duration(round(seconds * 1e9))
    return text.replace("m0s", "m").replace("h0m", "h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What one setting takes.

    `parse` returns the value, or raises ValueError with the reason. `metavar` stands for the value
    in help. `none` is what a user writes for None. `join` makes one text of the items of a list or
    a table, which `parse` reads back. `is_nested`: `parse` takes the values of the config file as
    they are, tables within tables too; `list_fields` yields each field of tables by name
    (`config.tables.ListedField`).
    """

    parse: Callable[[Any], Any]
    metavar: str = "TEXT"
    schema: Schema
    write: Callable[[object], str] = write_value
    none: str = "none"
    is_list: bool = False
    is_table: bool = False
    join: Callable[[Iterable[str]], str] = ", ".join
    is_nested: bool = False
    list_fields: Callable[[Any], Iterator[tuple[tuple[str, ...], object, str, Any]]] | None = None

    def read(self, value: object) -> Any:
        """Read a value of the config file. Raises ValueError with the reason."""
        if self.is_nested:
            return self.parse(value)
        if isinstance(value, list | tuple):
            if not self.is_list:
                raise ValueError("a list cannot be given here")
            return self.parse([write_value(item) for item in value])
        if isinstance(value, dict):
            if not self.is_table:
                raise ValueError("a table cannot be given here")
            return self.parse([f"{name}={write_value(item)}" for name, item in value.items()])
        return self.parse(write_value(value))

    def list_items(self, value: tuple[object, ...]) -> list[str]:
        """Write each item of a list or a table."""
        return ["=".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in value]

    def text(self, value: object) -> str:
        """Write a value of this kind, as `parse` reads it."""
        if value is None:
            return self.none
        if not isinstance(value, tuple | list):
            return self.write(value)
        return self.join(self.list_items(tuple(value))) or "none"


def text(metavar: str, parse: Callable[[str], Any] = parse.plain) -> Kind:
    """Return the kind of any text that `parse` accepts."""
    return Kind(parse=parse, metavar=metavar, schema={"type": "string"})


def number(low: int, high: int | None = None) -> Kind:
    """Return the kind of whole numbers from `low` to `high`."""
    schema: dict[str, Any] = {"type": "integer", "minimum": low}
    if high is not None:
        schema["maximum"] = high
    return Kind(parse=parse.whole(low, high), metavar="N", schema=schema)


def choice(*words: str) -> Kind:
    """Return the kind that takes one of some words, in any case."""

    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError("not one of " + ", ".join(words))
        return text.lower()

    return Kind(parse=read, metavar="|".join(words), schema={"enum": [*words]})


def auto(kind: Kind, *words: str) -> Kind:
    """Let `auto`, and further words, mean None: vllama decides."""
    in_json = (int(word) if word.isdecimal() else word for word in words)
    return replace(
        kind,
        parse=lambda text: None if text.lower() in ("auto", *words) else kind.parse(text),
        schema={"anyOf": [kind.schema, {"enum": ["auto", *in_json]}]},
        none="auto",
    )


def many(
    kind: Kind,
    split: Callable[[str], list[str]] = parse.by_comma,
    join: Callable[[Iterable[str]], str] = ", ".join,
) -> Kind:
    """Return the kind of lists; in a flag or a variable `split` separates what `join` joins."""
    schema = {"anyOf": [{"type": "array", "items": kind.schema}, {"type": "string"}]}

    def read(value: str | Sequence[str]) -> tuple[Any, ...]:
        return tuple(map(kind.parse, split(value) if isinstance(value, str) else value))

    return Kind(parse=read, metavar=kind.metavar, schema=schema, is_list=True, join=join)


def table(
    shape: str, value: Callable[[str], Any], metavar: str = "", schema: Schema | None = None
) -> Kind:
    """Return the kind of tables, such as `name=model`; `shape` shows one entry.

    `schema` is that of a value.
    """

    def read(text: str | Sequence[str]) -> tuple[tuple[str, Any], ...]:
        found = []
        for item in parse.by_comma(text) if isinstance(text, str) else text:
            name, _, rest = (part.strip() for part in item.partition("="))
            if not (name and rest):
                raise ValueError(f"not of the form {shape}")
            found.append((name, value(rest)))
        return tuple(found)

    values = {"type": "object", "additionalProperties": schema or {"type": "string"}}
    return Kind(
        parse=read,
        metavar=metavar or shape.upper(),
        schema={"anyOf": [values, {"type": "string"}]},
        is_table=True,
    )


NAME = text("NAME")
KEY = text("KEY", parse.key)
FILE = text("FILE", parse.path)
FOLDER = text("FOLDER", parse.path)
URL = text("URL")
HTTP_URL = text("URL", parse.http_url)
SWITCH = Kind(parse=parse.boolean, metavar="", schema={"type": "boolean"})
CONTEXT = Kind(
    parse=parse.context,
    metavar="N",
    schema={"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]},
)
LAYERS = Kind(
    parse=parse.layers,
    metavar="N",
    schema={"anyOf": [{"type": "integer", "minimum": -1}, {"const": "all"}]},
    write=lambda value: "all" if value == -1 else str(value),
)
DURATION = Kind(
    parse=parse.duration,
    metavar="DURATION",
    schema={"type": ["string", "number"]},
    write=write_duration,
)
TIMEOUT = Kind(
    parse=parse.timeout,
    metavar="DURATION",
    schema={"type": ["string", "number"]},
    write=write_duration,
    none="0",
)
_TRAITS = {
    "tool_calls": choice("parsed", "text", "none"),
    "thinking": choice("parsed", "tags", "none"),
    "context": CONTEXT,
    "embeddings": SWITCH,
    "images": SWITCH,
}


def read_traits(text: str) -> UpstreamTraits:
    """Accept `name=value name=value`, with the fields of `UpstreamTraits`."""
    found: dict[str, Any] = {}
    for item in text.split():
        name, equals, value = item.partition("=")
        if name not in _TRAITS or not equals:
            raise ValueError(f"'{item}' is not one of " + ", ".join(_TRAITS))
        try:
            found[name] = _TRAITS[name].parse(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return UpstreamTraits(**found)


UPSTREAM_TRAITS = table(
    "url=trait=value trait=value",
    read_traits,
    metavar="URL=TRAITS",
    schema={
        "type": "object",
        "additionalProperties": False,
        "properties": {name: kind.schema for name, kind in _TRAITS.items()},
    },
)
CAPTURES = Kind(
    parse=parse.captures,
    metavar="N|DIR",
    schema={"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]},
)
SIZE = Kind(
    parse=parse_bytes,
    metavar="SIZE",
    schema={"type": ["string", "integer"]},
    write=lambda value: write_bytes(int(str(value))),
)
SIZE_OR_SWITCH = Kind(
    parse=parse.size_or_switch,
    metavar="SIZE",
    schema={"type": ["string", "integer", "boolean"]},
    write=lambda value: write_value(value) if isinstance(value, bool) else SIZE.write(value),
)
