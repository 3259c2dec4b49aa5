"""TOML text keeps its comments and its other keys."""

from __future__ import annotations

import tomllib

import pytest

from vllama.cli.launch.edits import merge_tables

VALUES = {"model": "y", "n": 1, "model_providers": {"vllama": {"name": "v"}}}
TEXT = """\
# mine
model = "x"  # mine too

[model_providers.other]
name = "other"
"""


def test_put() -> None:
    changed = merge_tables(
        TEXT, {"model": "y", "n": 1, "model_providers": {"vllama": {"name": "v"}}}
    )
    assert changed == (
        '# mine\nmodel = "y"  # mine too\nn = 1\n\n[model_providers.other]\nname = "other"\n\n'
        '[model_providers.vllama]\nname = "v"\n'
    )
    again = merge_tables(
        changed, {"model": "y", "n": 1, "model_providers": {"vllama": {"name": "v"}}}
    )
    assert again == changed


def test_a_new_text() -> None:
    text = merge_tables("", {"model": 'a "b"', "model_providers": {"v": {"name": "n"}}})
    assert text == 'model = "a \\"b\\""\n\n[model_providers.v]\nname = "n"\n'
    assert tomllib.loads(text)["model_providers"] == {"v": {"name": "n"}}


@pytest.mark.parametrize(
    ("text", "message"), [("a = ", "at line 1"), ("model_providers = 1", "is not a table")]
)
def test_text_that_cannot_be_changed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        merge_tables(text, {"model_providers": {"v": {"name": "n"}}})
