"""Values as Go's templates see them: truth, comparison, and how they are written.

Python's `str`, `int`, `float`, `bool`, `None`, `list` and `dict` stand for Go's string, int,
float64, bool, nil, slice and map; `Struct` for a struct. What is said here follows the packages
text/template, fmt and encoding/json. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NO_VALUE = "<no value>"
_HTML = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


class TemplateError(ValueError):
    """Error in rendering a template; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct: `fields` as templates name them, `json` as it is encoded, in this order.

    It is written as JSON, as Ollama's types are (they have a `String` method).
    """

    fields: Mapping[str, object]
    json: Mapping[str, object]


class JsonMap(dict[str, Any]):
    """A map that is written as JSON; a missing key gives `zero`."""

    zero: object = None


class JsonList(list[Any]):
    """A slice that is written as JSON."""


class TypeNames(list[str]):
    """The types of a JSON schema: one is a string, in JSON and when written."""


def truth(value: object) -> bool:
    """Tell whether a value is not empty."""
    match value:
        case None:
            return False
        case Struct():
            return True
        case str() | list() | dict():
            return len(value) > 0
        case _:
            return bool(value)


def kind(value: object) -> str:
    """Return the name of a value's type in Go."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float64"
        case str():
            return "string"
        case list():
            return "[]interface {}"
        case dict():
            return "map[string]interface {}"
        case _:
            return "struct"


def format_value(value: object, *, inner: bool = False) -> str:
    """Write a value as fmt's %v does; `inner`: within a list or a map."""
    match value:
        case str():
            return value
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case float():
            return float_text(value)
        case TypeNames():
            return value[0] if len(value) == 1 else (f"[{' '.join(value)}]" if value else "")
        case Struct() | JsonMap() | JsonList():
            return json_text(value)
        case list():
            return f"[{' '.join(format_value(item, inner=True) for item in value)}]"
        case dict():
            pairs = (f"{key}:{format_value(value[key], inner=True)}" for key in sorted(value))
            return f"map[{' '.join(pairs)}]"
        case _:
            return str(value)


def float_text(value: float) -> str:
    """Write a float as fmt's %v does: shortest, with an exponent below 1e-4 and from 1e6 on."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return _decimal(value, -4, 6)


def _decimal(value: float, low: int, high: int) -> str:
    """Write the shortest digits; scientific if the exponent is below `low` or not below `high`."""
    if value == 0:
        return "0" if math.copysign(1, value) > 0 else "-0"
    digits, point = _digits(value)
    power = point - 1
    sign = "-" if value < 0 else ""
    if low <= power < high:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        if point >= len(digits):
            return sign + digits + "0" * (point - len(digits))
        return f"{sign}{digits[:point]}.{digits[point:]}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{'-' if power < 0 else '+'}{abs(power):02d}"


def _digits(value: float) -> tuple[str, int]:
    """Return the shortest digits, and where the point stands in them."""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)
    digits = whole + fraction
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    return stripped.rstrip("0"), point


def json_text(value: object) -> str:
    """Write a value as encoding/json does: maps sorted by key, `<>&` escaped."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).translate(_HTML)
        case int():
            return str(value)
        case float():
            if not math.isfinite(value):
                return ""
            text = _decimal(value, -6, 21)
            return text.replace("e-0", "e-")  # Go's encoder: 1e-7, but 1e+21
        case Struct():
            pairs = [f"{json_text(name)}:{json_text(item)}" for name, item in value.json.items()]
            return f"{{{','.join(pairs)}}}"
        case TypeNames() if len(value) == 1:
            return json_text(value[0])
        case list():
            return f"[{','.join(map(json_text, value))}]"
        case dict():
            pairs = [f"{json_text(key)}:{json_text(value[key])}" for key in sorted(value)]
            return f"{{{','.join(pairs)}}}"
        case _:
            raise TemplateError(f"cannot write a {kind(value)} as JSON")


def equal(one: object, other: object) -> bool:
    """Compare as `eq` does. Raises TemplateError for what cannot be compared."""
    if one is None or other is None:
        return one is other
    for value in (one, other):
        if isinstance(value, list | dict | Struct):
            raise TemplateError(f"cannot compare a {kind(value)}")
    if kind(one) != kind(other):
        raise TemplateError(f"cannot compare {kind(one)} and {kind(other)}")
    return one == other


def less(one: object, other: object) -> bool:
    """Compare as `lt` does. Raises TemplateError for what has no order."""
    if isinstance(one, str) and isinstance(other, str):
        return one.encode("utf-8", "replace") < other.encode("utf-8", "replace")
    for value in (one, other):
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TemplateError(f"cannot order a {kind(value)}")
    if kind(one) != kind(other):
        raise TemplateError(f"cannot compare {kind(one)} and {kind(other)}")
    assert isinstance(one, int | float) and isinstance(other, int | float)
    return one < other
