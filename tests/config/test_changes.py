"""Settings read again: what is taken over, what is kept, and what is told."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from vllama import config
from vllama.base.errors import ConfigError
from vllama.config.report import KEPT, compare_settings, report_settings


def load(**environ: str) -> config.Config:
    return config.load({}, {"HOME": "/nowhere", **environ})


@pytest.mark.parametrize(
    ("before", "after", "taken", "kept"),
    [
        ({}, {}, (), ()),
        ({}, {"VLLAMA_MAX_TOKENS": "9"}, ("max_tokens (auto → 9)",), ()),
        ({}, {"VLLAMA_MAX_QUEUE": "3"}, ("max_queue (512 → 3)",), ()),
        ({"VLLAMA_MAX_QUEUE": "3"}, {}, ("max_queue (3 → 512)",), ()),
        ({}, {"VLLAMA_ALIASES": "a=b,c=d"}, ("aliases (none → a=b, c=d)",), ()),
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
        if field.name == "sources":
            continue
        source = old if field.name in KEPT else new
        assert getattr(found.config, field.name) == getattr(source, field.name)
    assert compare_settings(found.config, new).taken == ()


def test_what_needs_a_load_is_told_apart_and_what_only_commands_read_is_not_told() -> None:
    found = compare_settings(
        load(), load(VLLAMA_CONTEXT_LENGTH="8k", VLLAMA_NOHISTORY="1", VLLAMA_CLIENT_KEY="k")
    )
    assert (found.taken, found.kept) == ((), ())
    assert found.loaded == ("context_length (auto → 8192)",)
    assert found.config.context_length == 8192


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


def read(tmp_path: Path, text: str) -> config.Config:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return config.load({}, {"HOME": "/nowhere"}, file)


BEFORE = """
engine_args = ["--api-key", "sk-1"]
[models."q:8b"]
context_length = 4096
defaults = { temperature = 0.5, stop = ["a"] }
engine_args = ["--hf-token", "sk-1"]
[upstreams.bee]
url = "http://user:sk-1@bee"
key = "sk-1"
"""
AFTER = """
engine_args = ["--api-key", "sk-2"]
[models."q:8b"]
context_length = 8192
defaults = { temperature = 0.5, stop = ["a"] }
engine_args = ["--hf-token", "sk-2"]
keep_alive = -1
[models.other]
gpus = [0, 1]
aliases = ["a", "b"]
[upstreams.bee]
url = "http://user:sk-2@bee"
key = "sk-2"
models = { "x.y" = "z" }
"""


def test_only_what_differs_in_tables_is_told_and_no_secret(tmp_path) -> None:
    old, new = read(tmp_path, BEFORE), read(tmp_path, AFTER)
    found = compare_settings(old, new)
    taken = (*found.taken, *found.loaded)
    assert set(found.taken) == {
        'models."q:8b".keep_alive (none → -1)',
        "models.other.aliases (none → a, b)",
        "upstreams.bee.url",
        "upstreams.bee.key",
        'upstreams.bee.models (none → { "x.y" = "z" })',
    }
    assert set(found.loaded) == {
        'models."q:8b".context_length (4096 → 8192)',
        'models."q:8b".engine_args',
        "models.other.gpus (none → [0, 1])",
        "engine_args",
    }
    rows = {row.key: row.text for row in report_settings(old).settings}
    assert rows['models."q:8b".defaults'] == '{ temperature = 0.5, stop = ["a"] }'
    assert rows["upstreams.bee.key"] == "…" and rows["upstreams.bee.url"] == "http://…@bee"
    assert "sk-" not in repr((taken, rows, report_settings(new)))


def test_the_order_of_tables_may_be_all_that_differs(tmp_path) -> None:
    tables = ('[models."q*"]\ncontext_length = 1\n', '[models."*q"]\ncontext_length = 2\n')
    old, new = read(tmp_path, "".join(tables)), read(tmp_path, "".join(reversed(tables)))
    assert compare_settings(old, new).taken == ("models (different order)",)


def test_a_setting_that_is_kept_keeps_its_source(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text("k1")
    old = load(VLLAMA_API_KEY_FILE=str(file), VLLAMA_PORT="99", VLLAMA_MAX_QUEUE="3")
    kept = compare_settings(old, read(tmp_path, "max_queue = 4")).config
    sources = {row.key: row.source for row in report_settings(kept).settings}
    assert sources["api_key"] == str(file) and sources["port"] == "VLLAMA_PORT"
    assert sources["max_queue"] == str(tmp_path / "config.toml")


def test_a_config_file_that_vanishes_is_refused(tmp_path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("max_queue = 3")
    old = config.load({}, {}, file)
    with pytest.raises(ConfigError, match=f'"{file}": it no longer exists'):
        compare_settings(old, load())
    assert compare_settings(load(), old).taken == ("max_queue (512 → 3)",)  # one that comes


def test_what_is_fixed_are_settings() -> None:
    known = {setting.field for setting in config.SETTINGS} | {"scheme"}
    assert known >= KEPT
