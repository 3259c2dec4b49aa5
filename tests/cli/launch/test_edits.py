"""Settings files keep their comments and their other keys, whatever their format."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from vllama.cli.launch.edits import load_json, put_values
from vllama.cli.launch.types import HasComments

READERS = {"json": load_json, "toml": tomllib.loads, "yaml": YAML(typ="safe").load}


def put(suffix: str, text: str, *keys: str, value: object = 1) -> str:
    """Return the text with a value; a second change makes no difference."""
    edit = put_values(Path(f"settings.{suffix}"), {keys: value})
    changed = edit.change(text)
    assert edit.change(changed) == changed
    return changed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        (" \n", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("{}", '{\n  "a": {\n    "b": 1\n  }\n}'),
        ('{"a": {"c": "é"}}\n', '{\n  "a": {\n    "c": "é",\n    "b": 1\n  }\n}\n'),
        ('{\n\t"a": null\n}', '{\n\t"a": {\n\t\t"b": 1\n\t}\n}'),
        ('{\r\n    "a": {}\r\n}\r\n', '{\r\n    "a": {\r\n        "b": 1\r\n    }\r\n}\r\n'),
        ('{"a": {"b": 0, "b": 2}}', '{\n  "a": {\n    "b": 1\n  }\n}'),
    ],
)
def test_json(text: str, expected: str) -> None:
    assert put("json", text, "a", "b") == expected


@pytest.mark.parametrize(
    "text",
    [
        "// mine\n{}",
        '{"a": {"b": 2,}}',
        '{/* "a": */ "u": "http://x, ]"}',
        '{\n  "c": [1,] // x\n}',
    ],
)
def test_json_with_comments_is_left_to_the_user(text: str) -> None:
    before = load_json(text)
    with pytest.raises(HasComments):
        put("json", text, "a", "b")
    there = json.dumps({**before, "a": {"b": 1}, "list": [1, 2]}, indent=2)
    there = there.replace("2\n  ]", "2, // , ]\n  ]").replace('"a": {', '/* { */ "a": {')
    assert put("json", there, "a", "b") == there  # nothing is left to do


TOML = """\
# mine
model = "x"  # mine too

[model_providers.other]
name = "other"
"""


def test_toml() -> None:
    values = {("model",): "y", ("n",): 1, ("model_providers", "vllama", "name"): "v"}
    edit = put_values(Path("config.toml"), values)
    changed = edit.change(TOML)
    assert changed == (
        '# mine\nmodel = "y"  # mine too\nn = 1\n\n[model_providers.other]\nname = "other"\n\n'
        '[model_providers.vllama]\nname = "v"\n'
    )
    assert edit.change(changed) == changed
    assert edit.change("") == 'model = "y"\nn = 1\n\n[model_providers.vllama]\nname = "v"\n'
    assert edit.change(TOML.replace("\n", "\r\n")) == changed.replace("\n", "\r\n")
    inline = 'model_providers = {other = {name = "other"}}\n'
    providers = tomllib.loads(edit.change(inline))["model_providers"]
    assert providers == {"other": {"name": "other"}, "vllama": {"name": "v"}}


YAML_TEXT = """\
# mine
model:
    provider: theirs   # mine too
    default: 'x'
    # the end of model

list:
    - a
    - b: yes

providers:   # none yet
text: |
    one

    two
"""


def test_yaml() -> None:
    changed = put("yaml", YAML_TEXT, "model", "provider", value="vllama")
    assert changed == YAML_TEXT.replace("theirs   # mine", '"vllama" # mine')
    changed = put("yaml", YAML_TEXT, "providers", "vllama", value={"a": 1, "b": ["x"]})
    entry = 'providers:   # none yet\n    vllama:\n        a: 1\n        b:\n            - "x"\n'
    assert changed == YAML_TEXT.replace("providers:   # none yet\n", entry)
    assert put("yaml", YAML_TEXT, "new", "deep", value=True) == (
        YAML_TEXT + "new:\n    deep: true\n"
    )


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", "a:\n  b: 1\n"),
        ("# mine\n", "# mine\na:\n  b: 1\n"),
        ("# mine", "# mine\na:\n  b: 1\n"),
        ("{}", "a:\n  b: 1\n"),
        ("c:\r\n  d: 2\r\n", "c:\r\n  d: 2\r\na:\r\n  b: 1\r\n"),
        ("a:\n# mine\n", "a:\n  b: 1\n# mine\n"),
        ("---\nc:\n- d\n", "---\nc:\n- d\na:\n  b: 1\n"),
    ],
)
def test_layouts_of_yaml(text: str, after: str) -> None:
    assert put("yaml", text, "a", "b") == after


@pytest.mark.parametrize("key", ["y", "no", "1", "qwen3:8b", "a b", "", "#", "- x", "ä"])
def test_keys_and_values_of_yaml_keep_their_type(key: str) -> None:
    values = ("no", "1:30", "", " # x", "a\nb", 'say "x"', "ü", 1, None, True)
    mappings = [{key: value} for value in values]
    changed = put("yaml", YAML_TEXT, "model", key, value=mappings)
    for version in ((1, 1), (1, 2)):  # the readers differ
        reader = YAML(typ="safe", pure=True)
        reader.version = version
        assert reader.load(changed)["model"][key] == mappings


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        ("json", '{\n "a": }', "line 2 column 7"),
        ("json", '{"a": 1} x', "Extra data"),
        ("json", "[" * 100_000, "nested too deeply"),
        ("json", "[1]", "the whole is not a mapping"),
        ("json", '{"a": [1]}', "a is not a mapping"),
        ("json", '{"c": 1e999}', "Out of range"),
        ("toml", "a = \n", "at line 1"),
        ("toml", "a = 1", "a is not a mapping"),
        ("yaml", "a: [", "at line 1"),
        ("yaml", "x: 1\nx: 2", "duplicate key.* at line 2"),
        ("yaml", "x: 1\n---\nx: 2", "another document"),
        ("yaml", "\a", "special characters"),
        ("yaml", "- 1", "the whole is not a mapping"),
        ("yaml", "x: &x {c: 1}\na: *x", "too unusual"),
        ("yaml", "x: &x {a: {c: 1}}\n<<: *x", "too unusual"),
    ],
)
def test_text_that_cannot_be_changed(suffix: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        put(suffix, text, "a", "b")


KEYS = st.text("abyn1: #-é", min_size=1, max_size=4)
SCALARS = st.booleans() | st.integers(-(2**40), 2**40) | st.text("ab: #\n'é", max_size=6)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("suffix", READERS)
@settings(max_examples=30, deadline=None)  # how long one takes depends on the machine
@given(
    st.dictionaries(KEYS, TREES, min_size=1, max_size=4),
    st.lists(KEYS, min_size=1, max_size=3),
    TREES,
)
def test_one_value_changes_and_nothing_else(
    suffix: str, document: dict[str, object], keys: list[str], value: object
) -> None:
    text = put(suffix, "", "first", value=document)
    try:
        changed = put(suffix, text, "first", *keys, value=value)
    except ValueError as error:
        assert "is not a mapping" in str(error)
        return
    expected = json.loads(json.dumps(document))
    place = expected
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = value
    assert READERS[suffix](changed) == {"first": expected}
