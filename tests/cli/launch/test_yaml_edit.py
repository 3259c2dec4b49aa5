"""YAML text keeps its comments, its layout and its other keys."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from vllama.cli.launch.edits import put_yaml as put

TEXT = """\
# mine
model:
    provider: theirs   # mine too
    default: 'x'
    # the end of model

list:
    - a
    - b:  yes

providers:   # none yet
flow: {a: 1,  b: }
text: |
  one

  two
"""


def test_insert_and_replace() -> None:
    changed = put(TEXT, ("model", "base_url"), "http://x")
    assert changed == TEXT.replace(
        "    default: 'x'\n", "    default: 'x'\n    base_url: \"http://x\"\n"
    )
    changed = put(TEXT, ("model", "provider"), "vllama")
    assert changed == TEXT.replace("theirs   # mine", '"vllama"   # mine')
    changed = put(TEXT, ("providers", "vllama"), {"a": 1, "b": ["x"]})
    entry = 'providers:\n  vllama:\n    a: 1\n    b:\n    - "x"   # none yet\n'
    assert changed == TEXT.replace("providers:   # none yet\n", entry)
    assert put(TEXT, ("flow", "b"), [1]) == TEXT.replace("b: }", '"b": [1] }')
    assert put(TEXT, ("flow", "c"), "x") == TEXT.replace("b: }", 'b: , "c": "x"}')
    assert put(TEXT, ("new", "deep"), True) == TEXT + "new:\n  deep: true\n"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", "a:\n  b: 1\n"),
        ("# mine\n", "# mine\na:\n  b: 1\n"),
        ("# mine", "# mine\na:\n  b: 1\n"),
        ("{}", '{"a": {"b": 1}}'),
        ("c: 2", "c: 2\na:\n  b: 1"),
        ("c:\r\n  d: 2\r\n", "c:\r\n  d: 2\r\na:\r\n  b: 1\r\n"),
        ("a:\n# mine\n", "a:\n  b: 1\n# mine\n"),
        ("a: {}\n", 'a: {"b": 1}\n'),
        ("---\nc: 2\n...\n", "---\nc: 2\na:\n  b: 1\n...\n"),
    ],
)
def test_layouts(text: str, after: str) -> None:
    assert put(text, ("a", "b"), 1) == after
    assert put(after, ("a", "b"), 1) == after


@pytest.mark.parametrize("key", ["y", "no", "1", "qwen3:8b", "a b", "", "#", "- x", "ä"])
def test_keys_and_values_keep_their_type(key: str) -> None:
    values = ("no", "1:30", "", " # x", "a\nb", 'say "x"', "ü", 1, None, True)
    mappings = [{key: value} for value in values]
    changed = put(TEXT, ("model", key), mappings)
    assert YAML(typ="safe").load(changed)["model"][key] == mappings
    assert put(changed, ("model", key), mappings) == changed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "at line 1"),
        ("x: 1\nx: 2", "duplicate key.* at line 2"),
        ("x: 1\n---\nx: 2", "another document"),
        ("\tx: 1", "at line 1"),
        ("\a", "special characters"),
        ("- 1", "the whole is not a mapping"),
        ("a: 1", "a is not a mapping"),
        ("x: &x {c: 1}\na: *x", "too unusual to insert a.b"),
    ],
)
def test_text_that_cannot_be_changed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        put(text, ("a", "b"), 1)


KEYS = st.text("abyn1: #-é", min_size=1, max_size=4)
TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text("ab: #\n'é", max_size=6)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)  # how long one takes depends on the machine
@given(
    st.dictionaries(KEYS, TREES, min_size=1, max_size=4),
    st.lists(KEYS, min_size=1, max_size=3),
    TREES,
    st.sampled_from(["", "  # mine"]),
)
def test_nothing_else_changes(
    document: dict[str, object], path: list[str], value: object, comment: str
) -> None:
    text = put("", ("first",), document) + f"last: 1{comment}\n"
    try:
        changed = put(text, ("first", *path), value)
    except ValueError as error:
        assert "is not a mapping" in str(error)
        return
    assert changed.endswith(f"last: 1{comment}\n")
    at = YAML(typ="safe").load(changed)["first"]
    for key in path:
        at = at[key]
    assert at == value
    assert put(changed, ("first", *path), value) == changed
