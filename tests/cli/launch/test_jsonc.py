"""JSON text keeps every character that is not meant."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vllama.cli.launch.jsonc import Path, load, put

COMMENTED = """\
// mine
{
  "a": 1, // one
  /* two */ "b": {"c": [1, 2]},
  "d": {
    "e": null, // last
  },
}
"""


@pytest.mark.parametrize(
    ("text", "path", "value", "expected"),
    [
        ("", ("a", "b"), 1, '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        (" \n", (0,), {"x": 1}, '[\n  {\n    "x": 1\n  }\n]\n'),
        ("{}", ("a",), 1, '{\n  "a": 1\n}'),
        ("{ }\n", ("a",), 1, '{\n  "a": 1\n}\n'),
        ("{\n  // none yet\n}", ("a",), 1, '{\n  // none yet\n  "a": 1\n}'),
        ('{"a": 1}', ("a",), 2, '{"a": 2}'),
        ('{"a": 1}', ("b",), [2], '{"a": 1, "b": [2]}'),
        ('{"a": 1,}', ("b",), 2, '{"a": 1, "b": 2}'),
        ('{\n\t"a": 1\n}', ("b", "c"), 2, '{\n\t"a": 1,\n\t"b": {\n\t\t"c": 2\n\t}\n}'),
        ('{\n  "a": 1 // one\n}', ("b",), 2, '{\n  "a": 1, // one\n  "b": 2\n}'),
        ('{\n  "a": 1, // one\n}', ("b",), 2, '{\n  "a": 1, // one\n  "b": 2,\n}'),
        (
            '{\r\n  "a": 1\r\n}\r\n',
            ("b",),
            {"c": 2},
            '{\r\n  "a": 1,\r\n  "b": {\r\n    "c": 2\r\n  }\r\n}\r\n',
        ),
        ("[1]", (1,), 2, "[1, 2]"),
        ("[\n    1\n]", (1,), 2, "[\n    1,\n    2\n]"),
        ('{"a": 1, "a": 2}', ("a",), 3, '{"a": 1, "a": 3}'),
        ('{"a": true}', ("a",), 1, '{"a": 1}'),
        ('{"é": "ü"}', ("é",), "ß", '{"é": "ß"}'),
        (COMMENTED, ("d", "e"), 0, COMMENTED.replace("null", "0")),
        (
            COMMENTED,
            ("d", "f"),
            0,
            COMMENTED.replace("// last\n", '// last\n    "f": 0,\n'),
        ),
        (COMMENTED, ("b", "c", 2), 3, COMMENTED.replace("[1, 2]", "[1, 2, 3]")),
        (COMMENTED, ("z",), 0, COMMENTED.replace("  },\n}", '  },\n  "z": 0,\n}')),
    ],
)
def test_put(text: str, path: Path, value: object, expected: str) -> None:
    changed = put(text, path, value)
    assert changed == expected
    assert put(changed, path, value) == changed


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("{", ("a",), "line 1, column 2: a key is missing"),
        ('{"a": 1 "b": 2}', ("a",), "line 1, column 9: a comma or } is missing"),
        ('{\n "a": }', ("a",), "line 2, column 7: a value is missing"),
        ("{'a': 1}", ("a",), "a key is missing"),
        ('{"a" 1}', ("a",), "a colon is missing"),
        ('{"a": 1} x', ("a",), "unexpected text"),
        ('{"a": "x', ("a",), "Unterminated string"),
        ("[" * 1000, (0,), "too deep"),
        ("[1]", ("a",), "the whole is not an object"),
        ('{"a": [1]}', ("a", "b"), "a is not an object"),
        ('{"a": {}}', ("a", 0), "a is not an array"),
        ("/* open", ("a",), "a value is missing"),
        ('{"a": 1-2}', ("a",), "line 1, column 7: 1-2 is no number"),
    ],
)
def test_text_that_cannot_be_changed(text: str, path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        put(text, path, 1)


KEYS = st.text(st.characters(codec="utf-8"), max_size=4)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
COMMENT = st.sampled_from(["", " ", "// x\n", "/* , } */", "\n\t", " // {\n  "])


@st.composite
def documents(draw: st.DrawFn) -> tuple[dict[str, object], str]:
    """An object, and a text of it with comments, commas and layout at random."""

    def write(value: object) -> str:
        if isinstance(value, dict):
            entries = [
                f"{draw(COMMENT)}{json.dumps(k)}{draw(COMMENT)}:{draw(COMMENT)}{write(v)}"
                for k, v in value.items()
            ]
        elif isinstance(value, list):
            entries = [f"{draw(COMMENT)}{write(item)}" for item in value]
        else:
            return json.dumps(value, ensure_ascii=draw(st.booleans()))
        body = f"{draw(COMMENT)},".join(entries) + draw(COMMENT)
        if entries and draw(st.booleans()):
            body += "," + draw(COMMENT)
        return "{" + body + "}" if isinstance(value, dict) else "[" + body + "]"

    value = draw(OBJECTS)
    return value, draw(COMMENT) + write(value) + draw(COMMENT)


@given(documents())
def test_every_document_is_read(document: tuple[dict[str, object], str]) -> None:
    value, text = document
    assert load(text) == value


@given(documents(), st.lists(KEYS, min_size=1, max_size=3), VALUES)
@example(({"a": {}}, '{"a": {}}'), ["a", "b"], 1)
def test_one_value_changes_and_nothing_else(
    document: tuple[dict[str, object], str], path: list[str], value: object
) -> None:
    before, text = document
    try:
        after = put(text, path, value)
    except ValueError as error:
        assert "is not an object" in str(error)
        return
    expected = json.loads(json.dumps(before))
    place = expected
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    assert load(after) == expected
    assert put(after, path, value) == after
    for comment in ("// x", "/* , } */", "// {"):
        lost = text.count(comment) - after.count(comment)
        assert lost <= 0 or _holds(before, path)


def _holds(value: object, path: list[str]) -> bool:
    """Tell whether there was a value at the path: comments inside of it go with it."""
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True
