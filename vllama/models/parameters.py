"""Options as text, after `PARAMETER` in a Modelfile or `/set parameter`: text → value. Pure.

Names and types are Ollama's.

See docs/reference/ollama-api.md#request-options, #load-options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

WHOLE = frozenset(
    [
        "num_ctx",
        "num_predict",
        "num_keep",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "seed",
        "top_k",
        "repeat_last_n",
        "draft_num_predict",
    ]
)
REAL = frozenset(
    [
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
    ]
)
LISTS = frozenset(["stop"])
BOOLEAN = frozenset(["use_mmap", "low_vram", "penalize_newline"])
KNOWN = WHOLE | REAL | LISTS | BOOLEAN
OBSOLETE = frozenset(
    [
        "f16_kv",
        "logits_all",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "numa",
        "tfs_z",
        "use_mlock",
        "vocab_only",
    ]
)
"""Once known to Ollama, without effect now: left out with a warning."""


def parse_parameter(name: str, values: Sequence[str]) -> object:
    """Return the value of option `name`.

    Raises ValueError with the sentence for the user.
    """
    if name not in KNOWN:
        raise ValueError(f"unknown parameter '{name}'; known are {', '.join(sorted(KNOWN))}")
    if not values:
        raise ValueError(f"parameter '{name}' needs a value")
    if name in LISTS:
        return [_unquoted(value) for value in values]
    if len(values) > 1:
        raise ValueError(f"parameter '{name}' takes one value")
    text = values[0]
    try:
        if name in WHOLE:
            return int(text)
        if name in REAL and math.isfinite(float(text)):
            return float(text)
    except ValueError:
        kind = "a whole number" if name in WHOLE else "a number"
        raise ValueError(f"parameter '{name}' needs {kind}, not '{text}'") from None
    if name in REAL:
        raise ValueError(f"parameter '{name}' needs a number, not '{text}'")
    if text.lower() not in ("true", "false"):
        raise ValueError(f"parameter '{name}' needs true or false, not '{text}'")
    return text.lower() == "true"


def _unquoted(text: str) -> str:
    paired = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if paired else text
