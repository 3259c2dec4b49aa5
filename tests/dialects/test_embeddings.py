from __future__ import annotations

import base64
import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.test_engine_request import LCP, VLLM
from vllama.base.errors import BadRequest, ModelNotFound, UpstreamError
from vllama.dialects.ollama.embeddings import (
    decode_embeddings,
    finish_vector,
    normalize,
    parse_embeddings,
    pool,
    truncate_dimensions,
    write_base64,
)


def answer(*vectors: object, tokens: int | None = 7) -> bytes:
    data = [{"object": "embedding", "index": n, "embedding": v} for n, v in enumerate(vectors)]
    usage = {} if tokens is None else {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    return json.dumps({"object": "list", "data": data, "model": "m"} | usage).encode()


def test_plain() -> None:
    assert decode_embeddings(answer([1, 2.5], [3, 4]), VLLM) == ([[1.0, 2.5], [3.0, 4.0]], 7)
    assert decode_embeddings(answer([1.0], tokens=None), VLLM) == ([[1.0]], 0)
    assert decode_embeddings(answer([1.0]), LCP) == ([[1.0]], 7)
    assert decode_embeddings(answer(), VLLM) == ([], 7)


def test_vectors_of_tokens_are_pooled() -> None:
    for traits in (LCP, VLLM):
        vectors, _ = decode_embeddings(answer([[3, 0], [3, 8]], [[0, 2]]), traits)
        assert vectors == [pytest.approx([0.6, 0.8]), pytest.approx([0, 1])]


def test_base64_and_order() -> None:
    text = base64.b64encode(struct.pack("<2f", 0.5, -2)).decode()
    assert decode_embeddings(answer(text), VLLM)[0] == [[0.5, -2.0]]
    swapped = b'{"data":[{"embedding":[2],"index":1},{"embedding":[1],"index":0}]}'
    assert decode_embeddings(swapped, VLLM)[0] == [[1.0], [2.0]]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        answer("x"),
        answer("%%"),
        answer([[1], [1, 2]]),
        answer(None),
        answer(["a"]),
    ],
)
def test_unreadable(body: bytes) -> None:
    with pytest.raises(UpstreamError):
        decode_embeddings(body, LCP)


def test_arithmetic() -> None:
    assert pool([]) == []
    assert normalize([0.0, 0.0]) == [0.0, 0.0]
    assert normalize([3.0, 4.0]) == [0.6, 0.8]
    assert truncate_dimensions([3.0, 4.0, 5.0], 2) == [0.6, 0.8]
    assert truncate_dimensions([3.0, 4.0], 0) == [3.0, 4.0]
    assert truncate_dimensions([3.0, 4.0], 5) == [3.0, 4.0]


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20).filter(lambda v: math.hypot(*v) > 1e-3)
)
def test_normalized_has_length_one(vector: list[float]) -> None:
    assert math.hypot(*normalize(vector)) == pytest.approx(1)


def test_vectors_are_normalized_and_in_base64() -> None:
    assert json.loads(bytes(finish_vector([3.0, 4.0]))) == pytest.approx([0.6, 0.8])
    encoded = json.loads(bytes(finish_vector([3.0, 4.0, 5.0], dimensions=2, form=write_base64)))
    assert base64.b64decode(encoded) == struct.pack("<2f", 0.6, 0.8)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ({"input": "a"}, ("a",)),
        ({"input": ""}, ("",)),
        ({"input": ["a", ""]}, ("a", "")),
        ({"input": [1, 2]}, ([1, 2],)),
        ({"input": [[1], [2, 3]]}, ([1], [2, 3])),
    ],
)
def test_inputs(body: dict[str, object], inputs: tuple[object, ...]) -> None:
    asked = parse_embeddings({"model": "m", **body})
    assert (asked.model, asked.inputs) == ("m", inputs)
    assert (asked.dimensions, asked.encoding) == (0, "float")


def test_form() -> None:
    asked = parse_embeddings(
        {"model": "m", "input": "a", "dimensions": 3.0, "encoding_format": "BASE64"}
    )
    assert (asked.dimensions, asked.encoding) == (3, "base64")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "invalid input"),
        ({"input": []}, "invalid input"),
        ({"input": [[]]}, "invalid input"),
        ({"input": ["a", 1]}, "invalid input"),
        ({"input": [True]}, "invalid input"),
        ({"input": [1.5]}, "invalid input"),
        ({"input": {"a": 1}}, "invalid input"),
        (
            {"input": "a", "encoding_format": "hex"},
            "Invalid value for 'encoding_format' = hex. Supported values: ['float', 'base64'].",
        ),
    ],
)
def test_inputs_refused(body: dict[str, object], text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_embeddings({"model": "m", **body})
    assert caught.value.message.startswith(text)


def test_a_missing_model_is_told_before_the_kind_of_input() -> None:
    with pytest.raises(ModelNotFound):
        parse_embeddings({"model": "", "input": [1.5]})
    with pytest.raises(BadRequest):
        parse_embeddings({"model": "", "input": []})
