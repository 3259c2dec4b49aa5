"""Settings read again: what is taken over, what is kept, and what is told."""

from __future__ import annotations

from dataclasses import fields

import pytest

from vllama import config
from vllama.config.changes import KEPT, compare_settings


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


def test_what_is_fixed_are_settings() -> None:
    known = {setting.field for setting in config.SETTINGS} | {"scheme"}
    assert known >= KEPT
