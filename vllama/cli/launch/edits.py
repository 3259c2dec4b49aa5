"""Edits that put values into settings files of other tools, by the format of each file."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from vllama.cli.launch import jsonc, yaml_edit
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
    return Edit(path=path, change=lambda text: merge_tables(text, values))


def write_text(path: Path, text: str) -> Edit:
    """Return the edit that writes a file of our own."""
    return Edit(path=path, change=lambda before: text)


def merge_tables(text: str, values: Mapping[str, object]) -> str:
    """Return the text with these values; tables are merged, not replaced. Raises ValueError."""
    try:
        document = tomlkit.parse(text)
        _merge_into(document, values)
        return tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ValueError(str(error)) from None


def _merge_into(table: MutableMapping[str, object], values: Mapping[str, object]) -> None:
    for key, value in values.items():
        if not isinstance(value, Mapping):
            if table.get(key) != value:
                table[key] = value
            continue
        child = table.get(key)
        if child is None:
            only_tables = all(isinstance(item, Mapping) for item in value.values())
            child = tomlkit.table(is_super_table=only_tables)
            _merge_into(child, value)
            table[key] = child
        elif isinstance(child, MutableMapping):
            _merge_into(child, value)
        else:
            raise ValueError(f"{key} is not a table")
