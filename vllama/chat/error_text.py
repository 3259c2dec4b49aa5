"""Engines' error texts, made fit to show: no file paths, stack or keys, one line, not too long.

llama.cpp's Python server answers a wrong type with pydantic's report, which includes source paths
and addresses.

See docs/reference/engines.md#llama-cpp-python-requests.
"""

from __future__ import annotations

import re

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
