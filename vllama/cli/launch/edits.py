"""Edits that put values into settings files of other tools, by the format of each file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vllama.cli.launch import jsonc, toml_edit, yaml_edit
from vllama.cli.launch.types import Edit

Values = Mapping[tuple[str, ...], object]
"""Values by the keys that lead to them."""


def put_values(path: Path, values: Values, *, new: Values | None = None) -> Edit:
    """Return the edit that puts values into a JSON or YAML file; `new` are only for a new one."""
    put = yaml_edit.put if path.suffix in (".yml", ".yaml") else jsonc.put

    def change(text: str) -> str:
        first = {} if text.strip() or new is None else new
        for keys, value in {**first, **values}.items():
            text = put(text, keys, value)
        return text

    return Edit(path=path, change=change)


def put_tables(path: Path, values: Mapping[str, object]) -> Edit:
    """Return the edit that merges values into a TOML file."""
    return Edit(path=path, change=lambda text: toml_edit.put(text, values))


def write_text(path: Path, text: str) -> Edit:
    """Return the edit that writes a file of our own."""
    return Edit(path=path, change=lambda before: text)
