"""Quantization names: in file names, in tags, in `general.file_type`.

Pure text and numbers. The grammar of names comes from the quantizers' repositories; the numbers
are llama.cpp's `enum llama_ftype` (include/llama.h).

See docs/reference/hub.md#file-names-and-quantizations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

UNQUANTIZED = frozenset({"F32", "F16", "BF16"})
UNDONE_BY_NOBODY = frozenset({"aqlm", "awq", "bitsandbytes", "eetq", "exl2", "hqq", "quanto"})
"""Schemes of safetensors (`quantization_config.quant_method`) that llama.cpp's converter cannot
undo; FP8, GPTQ, MXFP4 and compressed-tensors it can, in most of their forms."""


_TOKEN = (
    r"(?:IQ[1-4]_(?:XXS|XS|S|M|NL)|TQ[12]_0|Q1_0"
    r"|Q[2-8]_(?:K(?:_(?:XXL|XL|XS|S|M|L))?|[01](?:_[48]_[48])?)"
    r"|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)"
)
_IN_NAME = re.compile(rf"(?<![A-Z0-9])(?:I1-)?((?:UD-)?{_TOKEN})(?![A-Z0-9])")

# llama.cpp's preference when no tag is given (common/download.cpp), then the first file
PREFERRED: tuple[str, ...] = ("Q4_K_M", "Q8_0")

_FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    4: "Q4_1_F16",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    33: "Q4_0_4_4",
    34: "Q4_0_4_8",
    35: "Q4_0_8_8",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
}
_SAME = {"FP16": "F16", "FP32": "F32", "Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_GUESSED = 1024  # LLAMA_FTYPE_GUESSED: a flag on top of the number


def find_quant(path: str) -> str | None:
    """Return the quantization that a file's name (or else its folder's) carries, upper case.

    The last token counts: `qwen-q8-distill-Q4_K_M.gguf` is Q4_K_M. A prefix `UD-` (unsloth's
    dynamic quants) belongs to it, `i1-` (mradermacher's imatrix) does not.
    """
    parts = PurePosixPath(path.upper()).parts
    for part in reversed(parts[-2:]):
        found = _IN_NAME.findall(part)
        if found:
            return str(found[-1])
    return None


def parse_quant_tag(tag: str) -> str | None:
    """Return the quantization that a whole tag names (`q4_k_m` → `Q4_K_M`), or None."""
    match = _IN_NAME.fullmatch(tag.upper())
    return match.group(1) if match else None


def strip_quant(name: str) -> str:
    """Return a name without the quantizations in it: `Model-Q4_K_M-GGUF` → `Model--GGUF`.

    A number format that the weights were made in (`gpt-oss-20b-mxfp4`) goes too.
    """
    return _IN_NAME.sub("", name.upper()).lower()


def is_same_quant(one: str | None, other: str | None) -> bool:
    """Tell whether two quantizations are one: `F16` is also written `FP16`.

    `Q4_K` is llama.cpp's other name of `Q4_K_M`, and so on (tools/quantize/quantize.cpp).
    """
    return one is not None and other is not None and normalize_quant(one) == normalize_quant(other)


def normalize_quant(quant: str) -> str:
    """Return the name that llama.cpp lists for a quantization, in upper case."""
    return _SAME.get(quant.upper(), quant.upper())


def read_scheme(config: Mapping[str, object]) -> str | None:
    """Return how safetensors are quantized, by their `config.json`: `AWQ`, `MLX4`; None: not.

    mlx-lm writes `quantization` with a group size, all others `quantization_config`.
    """
    scheme = config.get("quantization_config") or config.get("quantization")
    if not isinstance(scheme, dict):
        return None
    if "group_size" in scheme and "quant_method" not in scheme:
        return f"MLX{scheme.get('bits') or ''}"
    return str(scheme.get("quant_method") or "quantized").upper()


def get_file_type_name(number: object) -> str | None:
    """Name a `general.file_type`; None for numbers that are not known."""
    return _FILE_TYPES.get(number & ~_GUESSED) if isinstance(number, int) else None


def get_bit_width(quant: str | None) -> int:
    """Return the bits per weight that a quantization's name says, 16 where it says none."""
    match = re.search(r"\d+", quant or "")
    return int(match.group()) if match else 16


def choose_intermediate(stored: str | None) -> str:
    """Return in what the converter should write weights that are quantized afterwards.

    Nothing is lost in the type that they are stored in; F32 is halved, as BF16 keeps its range.
    """
    return "F16" if stored == "F16" else "BF16"
