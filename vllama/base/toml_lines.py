"""Positions and spelling of values in a TOML file, which `tomllib` does not report. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[{1,2}(?P<keys>.+?)\]{1,2}\s*(?:#.*)?")
_ASSIGNMENT = re.compile(r"""\s*(?P<keys>(?:"[^"]*"|'[^']*'|[\w.-]|\s)+?)\s*=""")


def find_line(text: str, path: Sequence[str]) -> int | None:
    """Return the number of the line with the value at `path`, or with what is next above it."""
    table: tuple[str, ...] = ()
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            table = here = _read_keys(header["keys"])
        elif assignment := _ASSIGNMENT.match(line):
            here = (*table, *_read_keys(assignment["keys"]))
        else:
            continue
        here = here[: len(path)]  # a table within it stands for it
        if here and tuple(path[: len(here)]) == here and (best is None or len(here) > best[0]):
            best = len(here), number
    return best[1] if best else None


def write_keys(path: Iterable[str]) -> str:
    """Write the keys down to a value as a dotted key."""
    return ".".join(key if _BARE.fullmatch(key) else json.dumps(key) for key in path)


def write_toml(value: object) -> str:
    """Write a value in a line."""
    match value:
        case Mapping():
            items = (f"{write_keys([str(key)])} = {write_toml(one)}" for key, one in value.items())
            return f"{{ {', '.join(items)} }}"
        case list() | tuple():
            return f"[{', '.join(map(write_toml, value))}]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def _read_keys(text: str) -> tuple[str, ...]:
    """Return the parts of a dotted key; none if it is no key after all."""
    import tomllib  # every command imports this module, and few read a file

    try:
        value: Any = tomllib.loads(f"{text} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    keys = []
    while isinstance(value, dict):
        (key,) = value
        keys.append(key)
        value = value[key]
    return tuple(keys)
