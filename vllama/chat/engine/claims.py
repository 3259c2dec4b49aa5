"""Checks of engines' data where it enters: they, or whatever runs behind an address, may send
anything.

Usage, limits and answers build on numbers of tokens. What cannot be one is left out, as if the
engine had told nothing. Error texts are made fit to show: no file paths, stack or keys, one line,
not too long. llama.cpp's Python server answers a wrong type with pydantic's report, which includes
source paths and addresses (docs/reference/engines.md#llama-cpp-python-requests).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import msgspec

log = logging.getLogger(__name__)

MAX_COUNT = 1 << 53
"""More than any number of tokens; also the largest integer that every JSON reader keeps exact."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_COUNT)]


@cache
def warn_left_out(what: str) -> None:
    """Say in the log, once for each `what`, that a part of an engine's response was left out."""
    log.warning("ignoring unreadable data in an engine's response: %s", what)


def read_count(value: object, what: str) -> int | None:
    """Return a number of tokens; None, with a warning about `what`, for anything else."""
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    if value is not None:
        warn_left_out(what)
    return None


def clean_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAI's usage object without what cannot be numbers of tokens; the rest stays."""
    kept: dict[str, Any] = {}
    for name, value in usage.items():
        if isinstance(value, float) and value.is_integer():  # 5.0, as JSON libraries write it
            value = int(value)
        if name.endswith("_tokens") and type(value) is int and 0 <= value <= MAX_COUNT:
            kept[name] = value
            continue
        if name.endswith("_tokens_details") and not isinstance(value, dict):
            value = None
        elif isinstance(value, dict):
            value = {key: number for key, number in value.items() if _may_stay(key, number)}
        if _may_stay(name, value):
            kept[name] = value
    return kept


def read_usage(raw: msgspec.Raw, what: str) -> dict[str, Any]:
    """Return a usage object that may be anything, or missing; {}, with a warning, for no object."""
    try:
        value = msgspec.json.decode(raw or b"null", type=dict[str, Any] | None)
    except (ValueError, RecursionError):
        warn_left_out(what)
        return {}
    return clean_usage(value or {})


def _may_stay(name: str, value: object) -> bool:
    if not name.endswith("_tokens") and (type(value) is bool or not isinstance(value, int)):
        return True
    return value is None or read_count(value, "the usage") is not None


MAX_CHARS = 2000

# white space goes with what follows it, and is tried from its beginning only, not from each blank
_SOURCE_LINE = re.compile(r'(?<!\s)\s*+\bFile "[^"\n]*+", line \d++(?:, in [^\s:,;]++)?')
_PATH = re.compile(
    r"(?<![\w:/.<])(?:[A-Za-z]:\\(?:[^\s\\:*?\"<>|']++\\)*+|/(?:[\w.@+~-]++/)++)[\w.@+~-]*+"
)
_MORE = re.compile(r"(?<!\s)\s*+For further information visit https?://\S++")
# keys, whole or with stars in the place of their middle, as OpenAI quotes them
_SECRET = re.compile(r"\b(?:sk-|hf_|gsk_|Bearer\s++)[\w*.~+/=-]{6,}+")
_SPACE = re.compile(r"\s++")


def clean_text(text: str) -> str:
    """Return an engine's message without source lines, directories and keys, on one line."""
    text = text[: 4 * MAX_CHARS]
    text = _SOURCE_LINE.sub("", text)
    text = _MORE.sub("", text)
    text = _SECRET.sub("***", text)
    text = _PATH.sub(_last_name, text)
    text = _SPACE.sub(" ", text).strip()
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


def _last_name(path: re.Match[str]) -> str:
    """Return the last part of a path, with the separator after it if there is one."""
    folders = path[0].rstrip("\\/")
    return path[0][max(folders.rfind("/"), folders.rfind("\\")) + 1 :]
