"""The numbers of an answer that is no text: vectors and scores, apart from what is beside them."""

from __future__ import annotations

import base64
import struct
from typing import Any

VOLATILE = frozenset(
    {
        "id", "model", "created", "created_at", "completed_at", "system_fingerprint",
        "total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "usage",
    }
)  # fmt: skip
"""Fields that are different each time."""


def split_numbers(value: Any, place: str, numbers: dict[str, list[float]]) -> Any:
    """Move fractions, and lists of numbers, to `numbers`; return the rest without what varies.

    `place` is where `value` is in the answer, such as `data[0].embedding`.
    """
    if place.endswith(".embedding") and isinstance(value, str):
        value = _decode_vector(value)
    if isinstance(value, float):
        numbers[place] = [value]
        return "…"
    if isinstance(value, list):
        if value and all(isinstance(one, int | float) for one in value):
            numbers[place] = [float(one) for one in value]
            return f"{len(value)} numbers"
        parts = enumerate(value)
        return [split_numbers(one, f"{place}[{index}]", numbers) for index, one in parts]
    if isinstance(value, dict):
        return {
            name: split_numbers(one, f"{place}.{name}" if place else name, numbers)
            for name, one in value.items()
            if name not in VOLATILE
        }
    return value


def _decode_vector(text: str) -> object:
    """Return the vector of `encoding_format` "base64"; the text itself if it is none."""
    try:
        data = base64.b64decode(text, validate=True)
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    except (ValueError, struct.error):
        return text
