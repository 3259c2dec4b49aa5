"""Settings read again: what is taken over, what is kept, and what is told."""

from __future__ import annotations

from dataclasses import fields

import pytest

from vllama import config
from vllama.config.changes import KEPT, compare_settings
from vllama.errors import ConfigError


def load(**environ: str) -> config.Config:
    return config.load({}, {"HOME": "/nowhere", **environ})


@pytest.mark.parametrize(
    ("before", "after", "taken", "kept"),
    [
        ({}, {}, (), ()),
        ({}, {"VLLAMA_MAX_QUEUE": "3"}, ("max_queue (512 → 3)",), ()),
        ({"VLLAMA_MAX_QUEUE": "3"}, {}, ("max_queue (3 → 512)",), ()),
        ({}, {"VLLAMA_ALIASES": "a=b,c=d"}, ("aliases (none → a=b, c=d)",), ()),
        ({}, {"VLLAMA_CONTEXT_LENGTH": "8k"}, ("context_length (auto → 8192)",), ()),
        ({}, {"VLLAMA_DEBUG": "true"}, ("debug (false → true)",), ()),
        ({"VLLAMA_API_KEY": "k1"}, {"VLLAMA_API_KEY": "k2"}, ("api_key",), ()),
        ({}, {"VLLAMA_PORT": "99"}, (), ("port (11434 → 99)",)),
        ({}, {"VLLAMA_HOST": "[::1]:11434"}, (), ("host (127.0.0.1 → ::1)",)),
        ({}, {"VLLAMA_REPLICAS": "2"}, (), ("replicas (1 → 2)",)),
        ({}, {"VLLAMA_ORIGINS": "x"}, ("origins (none → x)",), ()),
    ],
)  # fmt: skip
def test_changes(
    before: dict[str, str], after: dict[str, str], taken: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    old, new = load(**before), load(**after)
    found = compare_settings(old, new)
    assert (found.taken, found.kept) == (taken, kept)
    for field in fields(config.Config):
        source = old if field.name in KEPT else new
        assert getattr(found.config, field.name) == getattr(source, field.name)
    assert compare_settings(found.config, new).taken == ()


def test_a_reload_never_takes_the_last_key_away(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text("k1")
    old, new = load(VLLAMA_API_KEY_FILE=str(file)), load(VLLAMA_MAX_QUEUE="3")
    found = compare_settings(old, new)
    assert found.config.api_key == ("k1",) and found.config.api_key_file == file
    assert found.kept[0] == "api_key" and found.taken == ("max_queue (512 → 3)",)
    assert compare_settings(found.config, new).config.api_key == ("k1",)  # nor does the next
    changed = compare_settings(found.config, load(VLLAMA_API_KEY="k2"))
    assert changed.config.api_key == ("k2",) and not changed.kept
    # where named keys are wanted, no plain one has to stay
    assert compare_settings(old, new, named_keys=True).config.api_key == ()


def test_a_config_file_that_vanishes_is_refused(tmp_path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("max_queue = 3")
    old = config.load({}, {}, file)
    with pytest.raises(ConfigError, match=f'"{file}": it is not there any more'):
        compare_settings(old, load())
    assert compare_settings(load(), old).taken == ("max_queue (512 → 3)",)  # one that comes


def test_what_is_fixed_are_settings() -> None:
    known = {setting.field for setting in config.SETTINGS} | {"scheme"}
    assert known >= KEPT
