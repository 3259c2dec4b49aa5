"""How far a tool has come, from the newest line of its output: line → share done. Pure.

Both formats are llama.cpp's: the converter shows a tqdm bar (gguf-py, `Writing:  43%|…`), the
quantiser numbers the tensors (src/llama-quant.cpp, `[  12/ 272] blk.0.attn_q.weight - …`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

Share = Callable[[str], float | None]
_BAR = re.compile(r"^(?:Writing|Shard \(\d+/\d+\)): +(\d+)%")
_NUMBERED = re.compile(r"^\[ *(\d+)/ *(\d+)\]")


def converted(line: str) -> float | None:
    """Return the share that the converter has written, 0 to 1; None if a line does not say."""
    match = _BAR.match(line)
    return min(int(match[1]), 100) / 100 if match else None


def quantised(line: str) -> float | None:
    """Return the share of tensors that the quantiser has begun; None if a line does not say."""
    match = _NUMBERED.match(line)
    if match is None or int(match[2]) == 0:
        return None
    return min(int(match[1]) / int(match[2]), 1.0)
