"""Limits for what others made: files that are uploaded or fetched, answers of hubs and registries.

A number in them is compared with a limit before anything is allocated or counted by it. Each limit
is far above what real models need and far below what hurts a server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MOST_LAYERS = 4096
MOST_HEADS = 65_536
MOST_NUMBER = 2**32 - 1
"""Of lengths and widths: a context, an embedding, a vocabulary."""
MOST_WEIGHTS = 2**44
"""In one tensor."""
MOST_FILE_BYTES = 2**43
MOST_TEMPLATE_CHARS = 256 * 1024
"""In a chat template, which is searched for what it tells in the server's loop."""
MOST_JSON_BYTES = 32 * 1024 * 1024
MOST_VALUES = 400_000
"""In one text of JSON: a value of one byte takes up to a hundred in memory."""


def decode_json(content: bytes) -> Any:
    """Decode JSON. Raises ValueError, also for what is nested deeply or has too many values."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise ValueError("it has too many values")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_limited(path: Path, most_bytes: int = MOST_JSON_BYTES) -> bytes:
    """Return a file's content. Raises OSError, ValueError for one that is longer."""
    if path.stat().st_size > most_bytes:
        raise ValueError(f"it is longer than {most_bytes} bytes")
    return path.read_bytes()
