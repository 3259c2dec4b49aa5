"""The functions of Go's text/template, and those that Ollama adds.

`and` and `or` are not here: they do not evaluate all their arguments. Left out are `call`, `html`,
`js` and `urlquery`, which make no prompt. Sources: the documentation of text/template and fmt;
Ollama's template/template.go for `json`, `currentDate`, `yesterdayDate`, `toTypeScriptType`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from vllama.chat.templates.go.values import (
    JsonMap,
    Struct,
    TemplateError,
    equal,
    float_text,
    format_value,
    json_text,
    kind,
    less,
    truth,
)

MAX_WIDTH = 1000
_VERB = re.compile(r"%([-+# 0]*)(\d+)?(?:\.(\d*))?(.)?", re.DOTALL)
_QUOTED = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_QUOTED |= {"\v": "\\v", "\\": "\\\\", '"': '\\"'}


def go_not(value: object) -> bool:
    """Negate."""
    return not truth(value)


def eq(first: object, *others: object) -> bool:
    """Tell whether the first equals any of the others."""
    if not others:
        raise TemplateError("eq: missing argument for comparison")
    return any(equal(first, other) for other in others)


def ne(one: object, other: object) -> bool:
    """Tell whether two values differ."""
    return not equal(one, other)


def le(one: object, other: object) -> bool:
    """Tell whether one is not greater."""
    return less(one, other) or equal(one, other)


def gt(one: object, other: object) -> bool:
    """Tell whether one is greater."""
    return not le(one, other)


def ge(one: object, other: object) -> bool:
    """Tell whether one is not less."""
    return not less(one, other)


def go_len(value: object) -> int:
    """Return a length; that of a string is in bytes."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, list | dict):
        return len(value)
    raise TemplateError(f"len of {kind(value)}")


def index(value: object, *keys: object) -> object:
    """Look up keys in turn; a key that a map lacks gives its zero value."""
    if value is None:
        raise TemplateError("index of nil")
    for key in keys:
        if isinstance(value, dict):
            if not isinstance(key, str):
                raise TemplateError(f"index: a key must be a string, not {kind(key)}")
            value = value.get(key, value.zero if isinstance(value, JsonMap) else None)
            continue
        if not isinstance(value, str | list):
            raise TemplateError(f"index of {kind(value)}")
        items = value.encode("utf-8", "replace") if isinstance(value, str) else value
        value = items[position(key, len(items) - 1)]
    return value


def go_slice(value: object, *bounds: object) -> object:
    """Cut a list, or the bytes of a string."""
    if not isinstance(value, str | list):
        raise TemplateError(f"slice of {kind(value)}")
    if len(bounds) > 3 - isinstance(value, str):
        raise TemplateError("slice: too many bounds")
    items = value.encode("utf-8", "replace") if isinstance(value, str) else value
    places = [position(bound, len(items)) for bound in bounds]
    if places != sorted(places):
        raise TemplateError(f"slice: invalid bounds {' '.join(map(str, places))}")
    start = places[0] if places else 0
    end = places[1] if len(places) > 1 else len(items)
    cut = items[start:end]
    return cut.decode("utf-8", "replace") if isinstance(cut, bytes) else cut


def position(value: object, most: int) -> int:
    """Check a place in a list. Raises TemplateError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TemplateError(f"an index must be an integer, not {kind(value)}")
    if not 0 <= value <= most:
        raise TemplateError(f"index out of range: {value}")
    return value


def go_print(*values: object) -> str:
    """Join as fmt.Sprint: a space between two values neither of which is a string."""
    out: list[str] = []
    for place, value in enumerate(values):
        if place and not isinstance(value, str) and not isinstance(values[place - 1], str):
            out.append(" ")
        out.append(format_value(value))
    return "".join(out)


def println(*values: object) -> str:
    """Join with spaces, and end the line."""
    return " ".join(map(format_value, values)) + "\n"


def printf(form: object, *values: object) -> str:
    """Format as fmt.Sprintf; a verb that does not fit its value says so in the text, as Go's."""
    if not isinstance(form, str):
        raise TemplateError(f"printf: the format must be a string, not {kind(form)}")
    left = list(values)

    def replace_match(match: re.Match[str]) -> str:
        flags, width, precision, verb = match.groups()
        if int(width or 0) > MAX_WIDTH or int(precision or 0) > MAX_WIDTH:
            raise TemplateError(f"printf: {match.group()} is too wide")
        if verb is None:
            return "%!(NOVERB)"
        if verb == "%":
            return "%"
        if not left:
            return f"%!{verb}(MISSING)"
        digits = None if precision is None else int(precision or 0)
        text = verb_text(verb, left.pop(0), flags, digits)
        if not width:
            return text
        if "-" in flags:
            return text.ljust(int(width))
        if "0" in flags and verb in "dfeg":
            sign = text[:1] if text[:1] in ("-", "+") else ""
            return sign + text[len(sign) :].rjust(int(width) - len(sign), "0")
        return text.rjust(int(width))

    text = _VERB.sub(replace_match, form)
    if left:
        extra = (kind(v) if v is None else f"{kind(v)}={format_value(v)}" for v in left)
        text += f"%!(EXTRA {', '.join(extra)})"
    return text


def verb_text(verb: str, value: object, flags: str, precision: int | None) -> str:
    """Return one value under one verb, without its width."""
    plus = "+" if "+" in flags else ""
    match verb, value:
        case "v", float() if precision is not None:
            return f"{value:{plus}.{precision}g}"
        case "v" | "s", str():
            return value if precision is None else value[:precision]
        case "v", _:
            return format_value(value)
        case "s", list() | dict() | Struct():
            return format_value(value)
        case "q", str():
            return quote(value)
        case "q", list():
            return f"[{' '.join(verb_text(verb, item, flags, precision) for item in value)}]"
        case "t", bool():
            return format_value(value)
        case _, bool() | None:
            pass
        case "d", int():
            return f"{value:{plus}d}"
        case "x" | "X" | "o" | "b", int():
            return f"{value:{verb}}"
        case "c", int() if 0 <= value <= 0x10FFFF:
            return chr(value)
        case "U", int():
            return f"U+{value:04X}"
        case "f" | "e" | "F" | "E", float():
            return f"{value:{plus}.{6 if precision is None else precision}{verb}}"
        case "g" | "G", float():
            return float_text(value) if precision is None else f"{value:{plus}.{precision}g}"
        case (("x" | "X"), str()):
            text = value.encode("utf-8", "replace").hex()
            return text.upper() if verb == "X" else text
    if value is None:
        return f"%!{verb}(<nil>)"
    return f"%!{verb}({kind(value)}={format_value(value)})"


def quote(text: str) -> str:
    """Quote as strconv.Quote."""
    out = []
    for char in text:
        code = ord(char)
        if char in _QUOTED:
            out.append(_QUOTED[char])
        elif char.isprintable():
            out.append(char)
        elif code < 0x80:
            out.append(f"\\x{code:02x}")
        else:
            out.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(out) + '"'


_TYPESCRIPT = {
    "string": "string", "number": "number", "integer": "number", "boolean": "boolean",
    "array": "any[]", "object": "Record<string, any>", "null": "null",
}  # fmt: skip


def typescript(value: object) -> str:
    """Name a tool's property in TypeScript, for models that were trained on such headers."""
    if not isinstance(value, Struct):
        return "any"
    choices = value.fields.get("AnyOf")
    if isinstance(choices, list) and choices:
        return " | ".join(map(typescript, choices))
    names = value.fields.get("Type")
    if not isinstance(names, list) or not names:
        return "any"
    return " | ".join(_TYPESCRIPT.get(name, "any") for name in names)


def functions(now: datetime) -> Mapping[str, Callable[..., object]]:
    """Return the functions by name; the time is that of the rendering."""
    return {
        "not": go_not, "eq": eq, "ne": ne, "lt": less, "le": le, "gt": gt, "ge": ge,
        "len": go_len, "index": index, "slice": go_slice,
        "print": go_print, "println": println, "printf": printf,
        "json": json_text, "toJson": json_text, "toTypeScriptType": typescript,
        "currentDate": lambda *_: f"{now:%Y-%m-%d}",
        "yesterdayDate": lambda *_: f"{now - timedelta(days=1):%Y-%m-%d}",
    }  # fmt: skip


NAMES = frozenset(("and", "or", *functions(datetime(2000, 1, 1))))
