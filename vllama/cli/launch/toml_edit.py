"""Changes values in TOML text and keeps its comments and layout. Pure."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import tomlkit
from tomlkit.exceptions import TOMLKitError


def put(text: str, values: Mapping[str, object]) -> str:
    """Return the text with these values; tables are merged, not replaced. Raises ValueError."""
    try:
        document = tomlkit.parse(text)
        _merge(document, values)
        return tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ValueError(str(error)) from None


def _merge(table: MutableMapping[str, object], values: Mapping[str, object]) -> None:
    for key, value in values.items():
        if not isinstance(value, Mapping):
            if table.get(key) != value:
                table[key] = value
            continue
        child = table.get(key)
        if child is None:
            only_tables = all(isinstance(item, Mapping) for item in value.values())
            child = tomlkit.table(is_super_table=only_tables)
            _merge(child, value)
            table[key] = child
        elif isinstance(child, MutableMapping):
            _merge(child, value)
        else:
            raise ValueError(f"{key} is not a table")
