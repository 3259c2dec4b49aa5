"""Vectors as Go's `encoding/json` writes them: the fewest digits that give the same number again.

Ollama's `/api/embed` and `/v1/embeddings` have float32 there, its older `/api/embeddings` the same
numbers as float64 (`api/types.go`). Small and large numbers have an exponent without leading
zeros: `1e-7`, `1e+21`; whole ones no fraction.

Python knows the shortest text of a double only. So whole vectors are written and read back in one
call each, with nine digits, which are always enough, and fewer for those that come back the same:
some 0.5 µs a number.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import msgspec

from vllama.errors import UpstreamError

_MOST_DIGITS = 9
_LEAST_EXPONENT, _MOST_EXPONENT = -7, 21  # from there on with an exponent
_read = msgspec.json.Decoder(list[float]).decode


def float32s(vector: Sequence[float]) -> str:
    """Return a JSON array of `vector`'s numbers, each rounded to a float32.

    Raises UpstreamError if one is infinite or none at all, as JSON has no word for it.
    """
    exact = _single(vector)
    texts = _written(exact, _MOST_DIGITS)
    left = list(range(len(exact)))  # those that may be shorter still
    for digits in range(_MOST_DIGITS - 1, 0, -1):
        numbers = [exact[place] for place in left]
        shorter = _written(numbers, digits)
        back = array("f", _read(f"[{','.join(shorter)}]"))
        same = [place for place in range(len(left)) if back[place] == numbers[place]]
        for place in same:
            texts[left[place]] = shorter[place]
        left = [left[place] for place in same]
    return f"[{','.join(map(_as_go, texts))}]"


def float64s(vector: Sequence[float]) -> str:
    """Return a JSON array of the same numbers, each written with the digits of a double.

    Raises what `float32s` raises.
    """
    texts = msgspec.json.encode(_single(vector)).decode()[1:-1]
    return f"[{','.join(map(_as_go, texts.split(',')))}]"


def _single(vector: Sequence[float]) -> list[float]:
    numbers = array("f", vector).tolist()
    if not math.isfinite(sum(numbers)):
        raise UpstreamError("the engine made a vector with a number that is not finite")
    return numbers


def _written(numbers: Sequence[float], digits: int) -> list[str]:
    return (f"%.{digits}g," * len(numbers) % tuple(numbers)).split(",")[:-1]


def _as_go(text: str) -> str:
    """Write a number's digits where Go puts them."""
    mantissa, e, exponent = text.removesuffix(".0").partition("e")
    if not e:
        return mantissa
    shift = int(exponent)
    if not _LEAST_EXPONENT < shift < _MOST_EXPONENT:
        return f"{mantissa}e{shift:+d}"
    whole, _, part = mantissa.removeprefix("-").partition(".")
    sign = "-" if mantissa[0] == "-" else ""
    point = len(whole) + shift
    digits = (whole + part).ljust(point, "0")
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point]}.{digits[point:]}".removesuffix(".")
