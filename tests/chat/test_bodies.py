"""Bodies: what of JSON is read, what is refused, and in which words."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import BadRequest, Forbidden
from vllama.base.meaning import says
from vllama.chat.bodies import (
    MAX_DEPTH,
    Body,
    convert,
    decode_json,
    decode_struct,
    encode_json,
)

GOOD = [
    (b'{"a": 1}', {"a": 1}),
    (b' \n{"a": 1}\n', {"a": 1}),
    (b'{"a": 1} {"b": 2}', {"a": 1}),
    (b'{"a": 1} trailing', {"a": 1}),
    (b'{"a": 1, "a": 2}', {"a": 2}),
    (rb'"\ud83d\ude00"', "😀"),
    (rb'["\ud83d", "x\udc00y"]', ["\ufffd", "x\ufffdy"]),
    (rb'{"\ud800": "\udbff\ud83d\ude00"}', {"\ufffd": "\ufffd😀"}),
    (b'{"a": "x\xffy"}', {"a": "x\ufffdy"}),
    (b"[1.5, -2, 1e3, null, true]", [1.5, -2, 1000.0, None, True]),
]
BAD = [
    *((body, "missing request body") for body in (b"", b" \n\t")),
    *(
        (body, "cannot read the request: invalid JSON: ")
        for body in (
            *(b"{", b'{"a"', b'{"a":', b'{"a": 1', b'{"a": "x', b'{"a": tru', b"[1,", b"hello"),
            *(b"<html>", b"model=x", b"{a: 1}", b"{'a': 1}", b'{"a": 1,}', b'{"a" 1}', b"[1,]"),
            *(b'{"a": 1 "b": 2}', b'{"a": [1 2]}', b'{"a": trux}', b'{"a": "\x01"}'),
            *(b'{"a": "\\q"}', b'{"a": "\\u12x4"}', b'{"a": "\\u12', b"\x1f\x8b"),
        )
    ),
    *(
        (body, "cannot read the request: a number is out of range")
        for body in (b"1e999", b"9" * 5000, b'{"a": NaN}', b"[-Infinity]")
    ),
    *(
        (body, "cannot read the request: it is nested too deeply")
        for body in (
            b"[" * 100_000,
            b"[" * 257 + b"]" * 257,
            b'{"a":' * 257 + b"1" + b"}" * 257,
            b"[" * 900 + b'"\\ud800"' + b"]" * 900,
            b'["\\"", ' + b'{"]\\\\":[' * 129 + b"]}" * 129 + b"]",
        )
    ),
]


@pytest.mark.parametrize(("body", "value"), GOOD)
def test_good(body: bytes, value: object) -> None:
    assert decode_json(body) == value


@pytest.mark.parametrize(("body", "text"), BAD, ids=range(len(BAD)))
def test_bad(body: bytes, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_json(body)
    assert caught.value.message.startswith(text)


def test_depth_below_the_limit_is_fine() -> None:
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert encode_json(decode_json(deep)) == deep
    wide = b"[" + b",".join([b"[[]]"] * 1000) + b"]"
    assert encode_json(decode_json(wide)) == wide
    text = json.dumps(["[{" * 1000, '"\\"[' * 1000, "\\[\\" * 1000]).encode()
    assert decode_json(text) == json.loads(text)


def test_large_bodies_take_linear_time() -> None:
    image = b"A" * (40 << 20)
    assert decode_json(b'{"images": ["' + image + b'"]}') == {"images": [image.decode()]}
    with pytest.raises(BadRequest, match="invalid JSON"):
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


# -- structs --------------------------------------------------------------------------------------


class Even(int):
    """A class that msgspec does not know."""

    @classmethod
    def read(cls, value: object) -> Even:
        if not isinstance(value, int):
            raise ValueError("Expected `even`")
        if value == 13:
            raise Forbidden("not this one")
        if value % 2:
            raise ValueError("an odd number")
        return cls(value)


class Kept(list[Any]):
    """A list whose items are checked, and stay as they are."""

    @classmethod
    def read(cls, value: Any) -> Kept:
        convert(value, list[Leaf | None])
        return cls(value)


class Leaf(Body):
    name: str | None = None
    size: int = 0
    leaves: dict[str, Leaf | None] = {}


class Tree(Body):
    name: str = ""
    is_old: bool = msgspec.field(name="Old", default=False)
    size: Annotated[int, msgspec.Meta(le=9)] = 0
    height: Annotated[float, says("in metres")] = 0.0
    sizes: Annotated[list[int | None], says("all of them")] = []
    note: str | list[str] | None = None
    leaf: Leaf | None = None
    leaves: list[Leaf | None] = []
    kept: Kept = msgspec.field(default_factory=Kept)
    even: Even = Even(0)
    few: Annotated[list[Any], msgspec.Meta(max_length=2)] = []


class Bare(Body):
    needed: str | None


def read(body: object, python_type: type[Body] = Tree) -> Any:
    return decode_struct(json.dumps(body).encode(), python_type, lambda unknown: None)


@pytest.mark.parametrize(
    ("body", "tree"),
    [
        (None, Tree()),
        ({}, Tree()),
        ({"NAME": "x", "old": True, "Leaf": {"SIZE": 3.0}},
         Tree(name="x", is_old=True, leaf=Leaf(size=3))),
        ({"Name": "x", "name": "y"}, Tree(name="y")),
        ({"name": "x", "Name": None}, Tree(name="x")),
        ({"name": None, "kept": None, "even": None, "leaves": [None]}, Tree(leaves=[None])),
        ({"other": {"name": 5}, "name": "x"}, Tree(name="x")),
        ({"size": 3.0, "height": 3, "sizes": [1.0, None, 2]},
         Tree(size=3, height=3.0, sizes=[1, None, 2])),
        ({"note": ["a"], "leaf": {"leaves": {"A": {"Size": 2.0, "x": 1}, "b": None}}},
         Tree(note=["a"], leaf=Leaf(leaves={"A": Leaf(size=2), "b": None}))),
        ({"kept": [{"name": "x", "more": None}, {"SIZE": 1.0}], "even": 4},
         Tree(kept=Kept([{"name": "x", "more": None}, {"SIZE": 1.0}]), even=Even(4))),
    ],
)  # fmt: skip
def test_what_is_read(body: object, tree: Tree) -> None:
    found = read(body)
    assert found == tree
    assert type(found.size) is int and type(found.even) is Even


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([], "the body: expected an object, got an array"),
        (5, "the body: expected an object, got an integer"),
        ({"name": 5}, "'name': expected a string, got an integer"),
        ({"NAME": 1.5}, "'name': expected a string, got a decimal"),
        ({"old": "x"}, "'Old': expected a boolean, got a string"),
        ({"size": 1.5}, "'size': expected an integer, got a decimal"),
        ({"size": True}, "'size': expected an integer, got a boolean"),
        ({"size": 10}, "'size': expected an integer <= 9"),
        ({"size": 2**70}, "'size': expected an integer <= 9"),
        ({"height": "x"}, "'height': expected a decimal, got a string"),
        ({"sizes": [1, "x"]}, "'sizes[1]': expected an integer, got a string"),
        ({"note": {}}, "'note': expected a string or an array, got an object"),
        ({"note": [None]}, "'note[0]': expected a string, got null"),
        ({"leaf": "x"}, "'leaf': expected an object, got a string"),
        ({"Leaves": [{}, {"name": 5}]}, "'leaves[1].name': expected a string, got an integer"),
        ({"leaf": {"leaves": {"a": 5}}}, "'leaf.leaves[...]': expected an object, got an integer"),
        ({"kept": {}}, "'kept': expected an array, got an object"),
        ({"kept": [{"leaves": {"a": {"size": "x"}}}]},
         "'kept[0].leaves[...].size': expected an integer, got a string"),
        ({"even": 3}, "'even': an odd number"),
        ({"even": "x"}, "'even': expected even"),
        ({"few": [1, 2, 3]}, "'few': expected an array of length <= 2"),
        ({"few": [1, 2, {}], "unknown": 1}, "'few': expected an array of length <= 2"),
    ],
)  # fmt: skip
def test_what_is_refused(body: object, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(body)
    assert caught.value.message == f"Invalid value for {text}."


def test_a_field_without_a_default_may_be_null_but_not_absent() -> None:
    assert read({"Needed": None}, Bare).needed is None
    with pytest.raises(BadRequest, match="the body: object missing required field needed"):
        read({"other": 1}, Bare)


def test_a_class_may_refuse_a_value_for_good() -> None:
    with pytest.raises(Forbidden, match="not this one"):
        read({"name": "x", "even": 13})


def test_unknown_fields_are_shown_before_anything_else_is_refused() -> None:
    seen: list[dict[str, Any]] = []
    with pytest.raises(BadRequest):
        decode_struct(b'{"name": 5, "Size": 1, "other": [2]}', Tree, seen.append)
    decode_struct(b'{"name": "x"}', Tree, seen.append)
    assert seen == [{"Size": 1, "other": [2]}]


def test_a_value_that_is_nested_as_deeply_as_may_be_is_tidied() -> None:
    leaf: dict[str, Any] = {"size": 1.0}
    for _ in range(MAX_DEPTH // 2 - 2):
        leaf = {"leaves": {"a": leaf}, "x": None}
    found = read({"leaf": leaf}).leaf
    for _ in range(MAX_DEPTH // 2 - 2):
        found = found.leaves["a"]
    assert found.size == 1
