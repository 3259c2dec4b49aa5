"""Values of OpenAI's form, of the right type or refused in OpenAI's words."""

from __future__ import annotations

import re
from typing import NoReturn

from vllama.base.errors import BadRequest
from vllama.chat.go_json import kind

_BASE64 = re.compile(r"[A-Za-z0-9+/]*+={0,2}")


def is_base64(text: str) -> bool:
    """Tell whether a text is a file, and not where one is: no path has this form by chance."""
    return len(text) % 4 == 0 and _BASE64.fullmatch(text) is not None


def read_integer(name: str, value: object) -> int:
    """Return an integer; `3.0` is one, as in JSON Schema. Raises BadRequest."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        refuse_type(name, "an integer", value)
    return value


def read_boolean(name: str, value: object) -> bool:
    """Return a boolean. Raises BadRequest."""
    return value if isinstance(value, bool) else refuse_type(name, "a boolean", value)


def refuse_type(name: str, wanted: str, value: object) -> NoReturn:
    """Raise BadRequest for a value of the wrong type."""
    raise BadRequest(
        f"Invalid type for '{name}': expected {wanted}, but got {kind(value)} instead."
    )
