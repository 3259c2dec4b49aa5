"""The kinds of values that settings take: how each is read, written, shown in help and described.

The type of a setting says its kind: `Size` is `Annotated[int, Kind(…)]`, and `tuple[Size, ...]` is
a list of sizes. Readers take text and return a value, or raise ValueError with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from vllama.base.toml_lines import write_toml
from vllama.base.units import format_go_duration, parse_bytes, parse_keep_alive, write_bytes

T = TypeVar("T")
Schema = Mapping[str, Any]
TEXT_SCHEMA: Schema = {"type": "string"}
LIST_SCHEMA: Schema = {"type": "array", "items": TEXT_SCHEMA}


def write_value(value: object) -> str:
    """Write a value as a user would."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueKind:
    """Kind of a setting's values: parser, schema and writer.

    `parse` returns the value. `metavar` stands for the value in help. `schema` is the kind in JSON
    Schema. `none` is what a user writes for None. `join` makes one text of the items of a list or a
    table, which `parse` reads back. `is_nested`: `parse` takes the values of the config file as
    they are, tables within tables too; `list_fields` yields each field of tables by name
    (`config.parse.ListedField`).
    """

    parse: Callable[[Any], Any]
    schema: Schema
    metavar: str = "TEXT"
    write: Callable[[Any], str] = write_value
    none: str = "none"
    is_list: bool = False
    is_table: bool = False
    join: Callable[[Iterable[str]], str] = ", ".join
    is_nested: bool = False
    list_fields: Callable[[Any], Iterator[tuple[tuple[str, ...], object, Any]]] | None = None

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

    def text(self, value: Any) -> str:
        """Write a value of this kind, as `parse` reads it."""
        if value is None:
            return self.none
        if self.is_table:
            value = ["=".join(map(str, item)) for item in value]
        elif not self.is_list:
            return self.write(value)
        return self.join(map(str, value)) or "none"


def find_kind(annotation: Any) -> ValueKind:
    """Return the kind that the type of a field says."""
    inner, *more = get_args(annotation) or (None,)
    if get_origin(annotation) is Annotated:
        (mark,) = more
        return mark if isinstance(mark, ValueKind) else mark(find_kind(inner))
    if get_origin(annotation) is tuple:
        return many(find_kind(inner))
    return PLAIN[annotation] if inner is None else find_kind(inner)


def text(
    metavar: str,
    parse: Callable[[str], Any],
    schema: Schema = TEXT_SCHEMA,
    write: Callable[[Any], str] = write_value,
) -> ValueKind:
    """Return the kind of any text that `parse` accepts."""
    return ValueKind(parse=parse, metavar=metavar, schema=schema, write=write)


def number(low: int, high: int | None = None) -> ValueKind:
    """Return the kind of whole numbers from `low` to `high`."""
    schema: dict[str, Any] = {"type": "integer", "minimum": low}
    if high is not None:
        schema["maximum"] = high
    return text("N", read_number(low, high), schema)


def choice(*words: str) -> ValueKind:
    """Return the kind that takes one of some words, in any case."""

    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError("not one of " + ", ".join(words))
        return text.lower()

    return text("|".join(words), read, {"enum": [*words]})


def auto(*words: str) -> Callable[[ValueKind], ValueKind]:
    """Read `auto`, and further words, as None: vllama decides."""
    in_json = [int(word) if word.isdecimal() else word for word in words]

    def extend(kind: ValueKind) -> ValueKind:
        return replace(
            kind,
            parse=lambda text: None if text.lower() in ("auto", *words) else kind.parse(text),
            schema={"anyOf": [kind.schema, {"enum": ["auto", *in_json]}]},
            none="auto",
        )

    return extend


def split_commas(text: str) -> list[str]:
    """Split `a, b`; empty items are dropped."""
    return [item.strip() for item in text.split(",") if item.strip()]


def many(
    kind: ValueKind,
    split: Callable[[str], list[str]] = split_commas,
    join: Callable[[Iterable[str]], str] = ", ".join,
) -> ValueKind:
    """Return the kind of lists; in a flag or a variable `split` separates what `join` joins."""
    schema = {"anyOf": [{"type": "array", "items": kind.schema}, TEXT_SCHEMA]}

    def read(value: str | Sequence[str]) -> tuple[Any, ...]:
        return tuple(map(kind.parse, split(value) if isinstance(value, str) else value))

    return ValueKind(parse=read, metavar=kind.metavar, schema=schema, is_list=True, join=join)


def table(shape: str, annotation: Any) -> ValueKind:
    """Return the kind of tables with values of a type; `shape` shows one entry."""
    kind = find_kind(annotation)

    def read(text: str | Sequence[str]) -> tuple[tuple[str, Any], ...]:
        found = []
        for item in split_commas(text) if isinstance(text, str) else text:
            name, _, rest = (part.strip() for part in item.partition("="))
            if not (name and rest):
                raise ValueError(f"not of the form {shape}")
            found.append((name, kind.parse(rest)))
        return tuple(found)

    values = {"type": "object", "additionalProperties": kind.schema}
    schema = {"anyOf": [values, TEXT_SCHEMA]}
    return ValueKind(parse=read, metavar=shape.upper(), schema=schema, is_table=True)


def nest(
    parse: Callable[[Any], Any], schema: Schema, write: Callable[[Any], str] = write_toml
) -> ValueKind:
    """Return the kind of values as TOML has them."""
    return ValueKind(parse=parse, schema=schema, write=write, is_nested=True)


def read_text(text: str) -> str:
    """Accept any text but an empty one."""
    if not text:
        raise ValueError("it is empty")
    return text


def read_key(text: str) -> str:
    """Accept one word of printable ASCII, as a header can hold it."""
    if not read_text(text).isascii() or not text.isprintable() or " " in text:
        raise ValueError("not one word of printable ASCII")
    return text


def read_http_url(text: str) -> str:
    """Accept the address of an HTTP server."""
    try:
        parts = urlsplit(read_text(text))
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("not an address like http://host:port")
    return text


def read_node_url(text: str) -> str:
    """Accept the address of a node, or `dns+` and one with a name that stands for all nodes."""
    read_http_url(text.removeprefix("dns+"))
    return text


def read_origin(text: str) -> str:
    """Accept the origin of an HTTP server, as a header can hold it: no path, no user, no spaces."""
    if not re.fullmatch(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?", text, re.ASCII):
        raise ValueError("not an origin like https://host:port")
    return text.lower()


def read_path(text: str) -> Path:
    """Accept a path; `~` is the home folder. It holds for engines too, which run elsewhere."""
    return Path(read_text(text)).expanduser().absolute()


def read_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return the reader of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("not a whole number") from None
        if number < low:
            raise ValueError(f"less than {low}")
        if high is not None and number > high:
            raise ValueError(f"more than {high}")
        return number

    return read


def read_context(text: str) -> int:
    """Accept a number of tokens, `8k` for 8192."""
    shorthand = text[-1:].lower() == "k" and text[:-1].isdigit()
    return read_number(1)(text[:-1]) * 1024 if shorthand else read_number(1)(text)


def read_switch(text: str) -> bool:
    """Accept the usual words for true and false."""
    if text.lower() in ("1", "t", "true", "yes", "y", "on"):
        return True
    if text.lower() in ("0", "f", "false", "no", "n", "off"):
        return False
    raise ValueError("neither true nor false")


def read_size_or_switch(text: str) -> int | bool:
    """Accept true, false and sizes."""
    return text == "true" if text in ("true", "false") else parse_bytes(text)


def read_duration(text: str) -> float:
    """Accept `5m`, `1h30m` or seconds; negative is `math.inf`."""
    try:
        seconds = float(text)
    except ValueError:
        return parse_keep_alive(text) or 0.0
    if not math.isfinite(seconds):
        raise ValueError("not a finite number")
    return math.inf if seconds < 0 else seconds


def read_timeout(text: str) -> float | None:
    """Accept a duration; zero or less means no limit, None."""
    seconds = read_duration(text)
    return None if seconds == 0 or math.isinf(seconds) else seconds


def write_duration(seconds: float) -> str:
    """Write seconds as `5m` or `1h30m`; infinite ones as -1."""
    if math.isinf(seconds):
        return "-1"
    text = format_go_duration(round(seconds * 1e9))
    return text.replace("m0s", "m").replace("h0m", "h")


def write_size_or_switch(value: int | bool) -> str:
    """Write true, false and sizes."""
    return write_value(value) if isinstance(value, bool) else write_bytes(value)


Auto = Annotated[T | None, auto()]
"""None, which a user writes as `auto`, lets vllama decide."""
AutoOrZero = Annotated[T | None, auto("0")]
"""The same, where Ollama or habit writes 0."""
Name = Annotated[str, text("NAME", read_text)]
Key = Annotated[str, text("KEY", read_key)]
Url = Annotated[str, text("URL", read_text)]
Origin = Annotated[str, text("ORIGIN", read_origin)]
HttpUrl = Annotated[str, text("URL", read_http_url)]
NodeUrl = Annotated[str, text("URL", read_node_url)]
File = Annotated[Path, text("FILE", read_path)]
Folder = Annotated[Path, text("FOLDER", read_path)]
Count = Annotated[int, number(1)]
COUNT_SCHEMA: Schema = {"type": "integer", "minimum": 1}
Context = Annotated[int, text("N", read_context, {"anyOf": [COUNT_SCHEMA, TEXT_SCHEMA]})]
DURATION = text("DURATION", read_duration, {"type": ["string", "number"]}, write_duration)
Duration = Annotated[float, DURATION]
Timeout = Annotated[float | None, replace(DURATION, parse=read_timeout, none="0")]
Size = Annotated[int, text("SIZE", parse_bytes, {"type": ["string", "integer"]}, write_bytes)]
SizeOrSwitch = Annotated[
    int | bool,
    text(
        "SIZE",
        read_size_or_switch,
        {"type": ["string", "integer", "boolean"]},
        write_size_or_switch,
    ),
]
KvCacheType = Annotated[
    str,
    choice("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "fp8", "fit"),
]
SWITCH = text("", read_switch, {"type": "boolean"})
PLAIN: Mapping[type, ValueKind] = {bool: SWITCH, str: text("TEXT", str)}
