"""Numbers of vectors: float32 as text, which come back as they were."""

from __future__ import annotations

import json
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import UpstreamError
from vllama.dialects.ollama.embeddings import write_float32s, write_float64s


def test_a_vector_is_an_array() -> None:
    assert write_float32s([]) == write_float64s([]) == "[]"
    assert write_float32s([0.25, -1, 0.1]) == "[0.25,-1,0.100000001]"


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e39])
def test_what_json_cannot_say(number: float) -> None:
    for form in (write_float32s, write_float64s):
        with pytest.raises(UpstreamError):
            form([0.5, number])


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=50))
def test_they_come_back(numbers: list[float]) -> None:
    assert array("f", json.loads(write_float32s(numbers))) == array("f", numbers)
    assert json.loads(write_float64s(numbers)) == numbers
