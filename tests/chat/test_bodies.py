from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import BadRequest
from vllama.chat.bodies import MAX_DEPTH, decode_json, encode_json

GOOD = [
    (b'{"a": 1}', {"a": 1}),
    (b' \n{"a": 1}\n', {"a": 1}),
    (b'{"a": 1} {"b": 2}', {"a": 1}),
    (b'{"a": 1} trailing', {"a": 1}),
    (b'{"a": 1, "a": 2}', {"a": 2}),
    (rb'"\ud83d\ude00"', "😀"),
    (rb'["\ud83d", "x\udc00y"]', ["\ufffd", "x\ufffdy"]),
    (b'{"a": "x\xffy"}', {"a": "x\ufffdy"}),
    (b"[1.5, -2, 1e3, null, true]", [1.5, -2, 1000.0, None, True]),
]
BAD = [
    (b"", "missing request body"),
    (b" \n\t", "missing request body"),
    (b"{", "unexpected EOF"),
    (b'{"a"', "unexpected EOF"),
    (b'{"a":', "unexpected EOF"),
    (b'{"a": 1', "unexpected EOF"),
    (b'{"a": "x', "unexpected EOF"),
    (b'{"a": tru', "unexpected EOF"),
    (b"[1,", "unexpected EOF"),
    (b"hello", "invalid character 'h' looking for beginning of value"),
    (b"<html>", "invalid character '<' looking for beginning of value"),
    (b"model=x", "invalid character 'm' looking for beginning of value"),
    (b"{a: 1}", "invalid character 'a' looking for beginning of object key string"),
    (b"{'a': 1}", r"invalid character '\'' looking for beginning of object key string"),
    (b'{"a": 1,}', "invalid character '}' looking for beginning of object key string"),
    (b'{"a" 1}', "invalid character '1' after object key"),
    (b'{"a": 1 "b": 2}', "invalid character '\"' after object key:value pair"),
    (b'{"a": [1 2]}', "invalid character '2' after array element"),
    (b'[{"a]": 1} 2]', "invalid character '2' after array element"),
    (b"[1,]", "invalid character ']' looking for beginning of value"),
    (b'{"a": trux}', "invalid character 'x' in literal true (expecting 'e')"),
    (b'{"a": NaN}', "invalid character 'N' looking for beginning of value"),
    (b'{"a": "\x01"}', r"invalid character '\x01' in string literal"),
    (b'{"a": "\\q"}', "invalid character 'q' in string escape code"),
    (b'{"a": "\\u12x4"}', r"invalid character 'x' in \u hexadecimal character escape"),
    (b'{"a": "\\u12"}', "invalid character '\"' in \\u hexadecimal character escape"),
    (b'{"a": "\\u12', "unexpected EOF"),
    (b'{"a": "\\u', "unexpected EOF"),
    (b"1e999", "json: cannot unmarshal number 1e999 into Go value of type float64"),
    (b"9" * 5000, "json: cannot unmarshal number into Go value of type float64"),
    (b"[" * 100_000, "exceeded max depth"),
    (b"[" * 300 + b"]" * 300, "exceeded max depth"),
    (b'{"a":' * 300 + b"1" + b"}" * 300, "exceeded max depth"),
]


@pytest.mark.parametrize(("body", "value"), GOOD)
def test_good(body: bytes, value: object) -> None:
    assert decode_json(body) == value


@pytest.mark.parametrize(("body", "text"), BAD, ids=range(len(BAD)))
def test_bad(body: bytes, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_json(body)
    assert caught.value.message == text


def test_depth_below_the_limit_is_fine() -> None:
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert encode_json(decode_json(deep)) == deep
    wide = b"[" + b",".join([b"[[]]"] * 1000) + b"]"
    assert encode_json(decode_json(wide)) == wide


def test_large_bodies_take_linear_time() -> None:
    image = b"A" * (40 << 20)
    assert decode_json(b'{"images": ["' + image + b'"]}') == {"images": [image.decode()]}
    with pytest.raises(BadRequest, match="unexpected EOF"):
        decode_json(b'{"images": ["' + image + b'"]')


@given(
    st.binary(max_size=60)
    | st.text(alphabet='{}[]",:\\ ntfabu0123.e-', max_size=40).map(str.encode)
)
def test_arbitrary_bytes(body: bytes) -> None:
    try:
        value = decode_json(body)
    except BadRequest as error:
        assert error.message
    else:
        assert json.loads(encode_json(value)) == value
