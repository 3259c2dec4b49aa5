"""Old config files and variables: what version 0.2 removed is named, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from vllama.base import removed
from vllama.base.errors import ConfigError
from vllama.base.setting import ENV_PREFIX
from vllama.base.toml_lines import write_keys
from vllama.models.settings import MODEL_FIELDS

Place = Callable[[Sequence[str]], str]
"""Where the value at some keys is, with its line in a file."""


def is_removed(name: str) -> bool:
    """Return whether this is the variable of a removed setting."""
    return name.removeprefix(ENV_PREFIX).lower() in removed.SETTINGS


def list_removed(
    entries: Collection[str], place: Place, environ: Mapping[str, str], known: Collection[str]
) -> Iterator[str]:
    """Yield a warning for each removed setting in a file's entries and in variables.

    `known` are the keys and variables of settings. Raises ConfigError for a setting without which
    another server would start.
    """
    for key, advice in removed.SETTINGS.items():
        if key in entries and key not in known:
            yield _warn((key,), place((key,)), advice)
        name = ENV_PREFIX + key.upper()
        if environ.get(name) and name not in known:
            yield _warn((key,), name, advice)
    for name, advice in removed.VARIABLES.items():
        if environ.get(name) and name not in known:
            yield f"{name} has no effect: it was removed; {advice}"


def take_out_fields(tables: Any, place: Place) -> Iterator[str]:
    """Take removed fields out of the tables of models, and yield a warning for each.

    Raises ConfigError as `list_removed` does.
    """
    known = [field.key for field in MODEL_FIELDS]
    for name, table in tables.items() if isinstance(tables, dict) else ():
        for key, value in list(table.items()) if isinstance(table, dict) else ():
            advice = None if key in known else removed.MODEL_FIELDS.get(key)
            if key == "draft" and str(value).strip().lower() == "auto":
                advice = removed.DRAFT_AUTO
            if advice:
                del table[key]
                yield _warn(("models", name, key), place(("models", name, key)), advice)


def _warn(path: Sequence[str], where: str, advice: str) -> str:
    name = f"{write_keys(path)} from {where}"
    if path[-1] in removed.REFUSED:
        raise ConfigError(f"cannot use {name}: it was removed", hint=advice)
    what = '"auto"' if path[-1] == "draft" else "it"
    return f"{name} has no effect: {what} was removed; {advice}"
