"""Where something stands in a TOML file: `tomllib` tells no lines. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

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
        if here and tuple(path[: len(here)]) == here and (best is None or len(here) > best[0]):
            best = len(here), number
    return best[1] if best else None


def _read_keys(text: str) -> tuple[str, ...]:
    """Return the parts of a dotted key; none if it is no key after all."""
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
