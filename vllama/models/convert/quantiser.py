"""llama.cpp's quantiser: how it is called, what it can make of what, and how large that becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllama.base.errors import BadRequest
from vllama.base.spelling import find_similar
from vllama.models.names.quant import UNQUANTISED


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiser:
    """A program that is called `command… SOURCE TARGET QUANT`; `env` is all that it may see."""

    title: str
    command: tuple[str, ...]
    env: Mapping[str, str]

    def argv(self, source: Path, target: Path, quant: str) -> tuple[str, ...]:
        """Return the command that makes `target`; of a split model `source` is the first part."""
        return (*self.command, str(source), str(target), quant)


BITS: Mapping[str, float] = {
    "F32": 32.0, "F16": 16.0, "BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.57, "Q5_K_M": 5.7,
    "Q5_K_S": 5.57, "Q5_1": 6.0, "Q5_0": 5.5, "Q4_K_M": 4.9, "Q4_K_S": 4.6, "Q4_1": 5.0,
    "Q4_0": 4.6, "IQ4_NL": 4.6, "IQ4_XS": 4.4, "Q3_K_L": 4.3, "Q3_K_M": 4.0, "Q3_K_S": 3.6,
    "IQ3_M": 3.8, "IQ3_S": 3.6, "Q2_K": 3.2,
}  # fmt: skip
"""Bits per weight of a usual model, by llama.cpp's names (tools/quantize), the largest first.

Those that llama.cpp makes only with an importance matrix are left out.
"""
DEFAULT = "Q4_K_M"
DIRECT = frozenset({"F32", "F16", "BF16", "Q8_0"})
"""What the converter writes by itself (its `--outtype`)."""
SPARE = 1.3
"""Small models keep large embeddings at more bits than the rest has."""
_SPELLINGS = {
    "FP16": "F16", "FP32": "F32", "Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M",
}  # fmt: skip


def parse_quant(text: str) -> str:
    """Return llama.cpp's spelling of a quantisation. Raises BadRequest, with the valid names."""
    name = text.strip().upper()
    name = _SPELLINGS.get(name, name)
    if name in BITS:
        return name
    near = find_similar(name, BITS) or [known for known in BITS if name and known.startswith(name)]
    meant = f"did you mean {near[0]}? " if near else ""
    raise BadRequest(
        f'unsupported quantization "{text}"', hint=f"{meant}known are {', '.join(BITS)}"
    )


def check_requantise(name: str, has: str | None, wanted: str) -> None:
    """Refuse to quantise what is quantised already: it would lose twice. Raises BadRequest."""
    if (has or "").upper() not in UNQUANTISED:
        raise BadRequest(
            f"cannot quantize '{name}' to {wanted}: it is {has or 'quantized'} already",
            hint="quantization is only supported for F16, BF16 and F32 models",
        )


def choose_intermediate(stored: str | None) -> str:
    """Return in what the converter should write weights that are quantised afterwards.

    Nothing is lost in the type that they are stored in; F32 is halved, as BF16 keeps its range.
    """
    return "F16" if stored == "F16" else "BF16"


def estimate_size(parameters: int, quant: str) -> int:
    """Return the expected bytes of a model's weights, for the choice of a disk: rather too many."""
    bits = BITS[quant]
    return int(parameters * min(bits * SPARE, max(bits, 16.0)) / 8)
