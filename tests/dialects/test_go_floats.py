"""Numbers of vectors as Go's encoder writes them; the table was made with Go 1.19's own."""

from __future__ import annotations

import json
import math
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.dialects.ollama.go_floats import float32s, float64s
from vllama.errors import UpstreamError

# of a float32: its text there, and that of the same number as a float64
GO = [
    (0.0, "0", "0"),
    (-0.0, "-0", "-0"),
    (1.0, "1", "1"),
    (0.1, "0.1", "0.10000000149011612"),
    (-0.0017594862, "-0.0017594862", "-0.0017594861565157771"),
    (0.5670403838157654, "0.5670404", "0.5670403838157654"),
    (123456789.0, "123456790", "123456792"),
    (1e20, "100000000000000000000", "100000002004087730000"),
    (1e21, "1e+21", "1.0000000200408773e+21"),
    (3.4028235e38, "3.4028235e+38", "3.4028234663852886e+38"),
    (1e-6, "0.000001", "9.999999974752427e-7"),
    (1.234e-6, "0.000001234", "0.0000012340000239419169"),
    (1.25e-5, "0.0000125", "0.00001249999968422344"),
    (-9.99e-7, "-9.99e-7", "-9.990000080506434e-7"),
    (1e-45, "1e-45", "1.401298464324817e-45"),
]


@pytest.mark.parametrize(("number", "single", "double"), GO)
def test_as_go_writes_them(number: float, single: str, double: str) -> None:
    assert float32s([number]) == f"[{single}]"
    assert float64s([number]) == f"[{double}]"


def test_a_vector_is_an_array() -> None:
    assert float32s([]) == float64s([]) == "[]"
    assert float32s([0.25, -1, 2e-7]) == "[0.25,-1,2e-7]"


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e39])
def test_what_json_cannot_say(number: float) -> None:
    for form in (float32s, float64s):
        with pytest.raises(UpstreamError):
            form([0.5, number])


def rounded(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=50))
def test_they_come_back_and_are_the_shortest(numbers: list[float]) -> None:
    texts = float32s(numbers)[1:-1].split(",") if numbers else []
    assert array("f", map(float, texts)) == array("f", numbers)
    assert list(map(float, json.loads(float64s(numbers)))) == numbers
    for text, number in zip(texts, numbers, strict=True):
        digits = text.lstrip("-").partition("e")[0].replace(".", "").strip("0")
        if len(digits) > 1 and math.frexp(number)[0] not in (0.5, -0.5):
            assert rounded(float(f"%.{len(digits) - 1}g" % number)) != number
