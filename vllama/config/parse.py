"""The kinds of values that single settings take, with the reasons why others are refused.

Tables by name in the config file, such as `[models."NAME"]`, are settings, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from vllama.accounts.keys.group import GROUP_FIELDS, Group
from vllama.base.kinds import (
    LIST_SCHEMA,
    TEXT_SCHEMA,
    Folder,
    ValueKind,
    find_kind,
    many,
    read_number,
    read_path,
    read_text,
    split_commas,
    text,
)
from vllama.base.setting import Setting, TableError, describe_fields, list_given, read_fields
from vllama.config import address
from vllama.models.disk import is_file
from vllama.models.names.ref import HUB_HOSTS, list_spellings
from vllama.models.names.variants import CONFIG_FILES
from vllama.models.settings import (
    MODEL_FIELDS,
    UPSTREAM_FIELDS,
    ModelSettings,
    UpstreamSettings,
    is_pattern,
)

_HOSTS = tuple(f"{host}/" for host in HUB_HOSTS)


def read_registry(text: str) -> str:
    """Accept `host` or `host:port`, in lower case; of a URL take the host."""
    host = read_text(text).lower().partition("://")[2] or text.lower()
    host = host.rstrip("/")
    if not re.fullmatch(r"(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", host):
        raise ValueError("not a host, or a host and port")
    return host


def read_model(text: str) -> str:
    """Accept a model's name."""
    return whole_path(read_text(text))


def whole_path(name: str) -> str:
    """Return a model's name as typed in a shell, with a relative path made absolute.

    What exists here is a path: a `.gguf` file, a name with a slash, and a folder that holds a
    model. The server, for one, may work in another folder.
    """
    return str(Path(name).expanduser().absolute()) if _is_path(name) else name


def _is_path(name: str) -> bool:
    if name.startswith(("./", "../", "~/")) or name in (".", ".."):
        return True
    if not name.strip() or "://" in name or name.lower().startswith(_HOSTS):
        return False
    try:
        here = Path(name)
        return (here.exists() and "/" in name) or is_gguf(here) or holds_model(here)
    except (OSError, ValueError):  # too long for a path, or a zero byte in it
        return False


def is_gguf(path: Path) -> bool:
    """Tell whether this is the path of a GGUF file."""
    return path.name.lower().endswith(".gguf") and path.is_file()


def holds_model(folder: Path) -> bool:
    """Tell whether a folder has a model's files in it."""
    has_config = any(is_file(folder / name) for name in CONFIG_FILES)
    return has_config or any(folder.glob("*.gguf"))


def read_captures(text: str) -> int | Path:
    """Accept how many captures to keep, or the folder to keep them in."""
    return read_number(0)(text) if text.strip().lstrip("-").isdecimal() else read_path(text)


def read_layers(text: str) -> int:
    """Accept a number of layers, `all` for -1."""
    return -1 if text.lower() == "all" else read_number(-1)(text)


def write_layers(value: int) -> str:
    """Write a number of layers."""
    return "all" if value == -1 else str(value)


def split_paths(text: str) -> list[str]:
    """Split as `PATH` is split; empty items are dropped."""
    return [item for item in text.split(os.pathsep) if item]


def read_host(text: str) -> address.Address:
    """Accept an address with or without a port; a wrong port is an error here."""
    parts = address.parse_address(read_text(text))
    if parts.bad_port is not None:
        raise ValueError(f'invalid port: "{parts.bad_port}"')
    return parts


_COUNT = {"type": "integer", "minimum": 0}
_LAYERS = {"anyOf": [{"type": "integer", "minimum": -1}, {"const": "all"}]}
Captures = Annotated[int | Path, text("N|DIR", read_captures, {"anyOf": [_COUNT, TEXT_SCHEMA]})]
Folders = Annotated[tuple[Path, ...], many(find_kind(Folder), split_paths, os.pathsep.join)]
Layers = Annotated[int, text("N", read_layers, _LAYERS, write_layers)]
ListeningAddress = Annotated[str, text("ADDRESS", read_host)]
ModelArgument = Annotated[str, text("NAME", read_model)]
Registry = Annotated[str, text("HOST", read_registry)]


# -- tables by name ------------------------------------------------------------------------------


ListedField = tuple[tuple[str, ...], object, Setting | None]
"""The keys of a field within its setting, its value and its declaration; None: a plain URL."""


def read_models(value: object) -> tuple[tuple[str, ModelSettings], ...]:
    """Accept the tables of models, by name or pattern. Raises TableError."""
    found = []
    for name, table in _read_tables("models", value).items():
        given = read_fields(("models", name), table, MODEL_FIELDS)
        for key in ("aliases", "preload"):
            if given.get(key) and is_pattern(name):
                hint = "set it in the table of one model"
                raise TableError(("models", name, key), "a pattern matches several models", hint)
        found.append((name, ModelSettings(**given)))
    _check_aliases(found)
    _check_fallbacks(found)
    return tuple(found)


def read_upstreams(value: object) -> tuple[UpstreamSettings, ...]:
    """Accept URLs, or the tables of named upstreams. Raises TableError."""
    if isinstance(value, str):
        value = split_commas(value)
    if isinstance(value, Sequence):
        return tuple(UpstreamSettings(url=read_text(str(url))) for url in value)
    found = []
    for name, table in _read_tables("upstreams", value).items():
        path = ("upstreams", name)
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise TableError(path, "not a name", hint="use letters, digits, '-', '_' and '.'")
        given = read_fields(path, table, UPSTREAM_FIELDS)
        if "url" not in given:
            raise TableError(path, "it has no url", hint='add: url = "http://host:port"')
        ways = [key for key in ("key", "key_env", "key_file") if key in given]
        if len(ways) > 1:
            hint = f"remove {ways[0]}"
            raise TableError((*path, ways[1]), "it has two keys", hint=hint)
        found.append(UpstreamSettings(name=name, **given))
    return tuple(found)


def read_groups(value: object) -> tuple[Group, ...]:
    """Accept the tables of groups of keys. Raises TableError."""
    tables = _read_tables("groups", value).items()
    given = ((name, read_fields(("groups", name), table, GROUP_FIELDS)) for name, table in tables)
    return tuple(Group(name=name, **fields) for name, fields in given)


def _read_tables(key: str, value: object) -> Mapping[str, Mapping[str, object]]:
    known = {"models": "keep_alive = -1", "upstreams": 'url = "http://host:port"'}
    example = known.get(key, 'tokens = "1M/day"')
    hint = f'write [{key}."NAME"], and below it lines such as: {example}'
    if not isinstance(value, Mapping):
        raise TableError((key,), "not tables", hint=hint)
    for name, table in value.items():
        if not isinstance(table, Mapping):
            raise TableError((key, name), "not a table", hint=hint)
    return value


def _check_aliases(tables: Iterable[tuple[str, ModelSettings]]) -> None:
    """Refuse an alias that two models have, or that has a table of its own."""
    tables = list(tables)
    names = {each for name, _ in tables for each in list_spellings(name)}
    owners: dict[str, str] = {}
    for name, settings in tables:
        path = ("models", name, "aliases")
        for alias in settings.aliases or ():
            own = list_spellings(alias)
            if own & names and not own & list_spellings(name):
                hint = "remove it here, or rename that table"
                raise TableError(path, f"'{alias}' has its own table", hint)
            owner = next((owners[each] for each in own if each in owners), name)
            if owner != name:
                hint = "remove it from one of them"
                raise TableError(path, f"'{alias}' is already an alias of '{owner}'", hint)
            owners |= dict.fromkeys(own, name)


def _check_fallbacks(tables: Iterable[tuple[str, ModelSettings]]) -> None:
    """Refuse a model that is its own fallback."""
    for name, settings in tables:
        own = {form for each in (name, *(settings.aliases or ())) for form in list_spellings(each)}
        for link in settings.fallback or ():
            if own & list_spellings(link):
                path, hint = ("models", name, "fallback"), "remove it: the model is tried first"
                raise TableError(path, f"'{link}' is the model itself", hint)


def list_upstreams(upstreams: Iterable[UpstreamSettings]) -> Iterator[ListedField]:
    """Yield the URLs of upstreams without names, and the fields that are set for the others."""
    upstreams = tuple(upstreams)
    if urls := tuple(each.url for each in upstreams if not each.name):
        yield (), urls, None
    yield from _list_named(((one.name, one) for one in upstreams if one.name), UPSTREAM_FIELDS)


def _list_named(
    tables: Iterable[tuple[str, object]], declared: Sequence[Setting]
) -> Iterator[ListedField]:
    for name, table in tables:
        for each, value in list_given(table, declared).items():
            yield (name, each.key), value, each


def _describe(declared: Sequence[Setting]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": describe_fields(declared)}


_TABLES = ValueKind(
    parse=read_models,
    schema=_describe(MODEL_FIELDS),
    is_table=True,
    is_nested=True,
    list_fields=partial(_list_named, declared=MODEL_FIELDS),
)
Models = Annotated[tuple[tuple[str, ModelSettings], ...], _TABLES]
Groups = Annotated[
    tuple[Group, ...],
    replace(
        _TABLES,
        parse=read_groups,
        schema=_describe(GROUP_FIELDS),
        list_fields=lambda groups: _list_named(((one.name, one) for one in groups), GROUP_FIELDS),
    ),
]
Upstreams = Annotated[
    tuple[UpstreamSettings, ...],
    ValueKind(
        parse=read_upstreams,
        metavar="URL",
        schema={"anyOf": [LIST_SCHEMA, {"type": "string"}, _describe(UPSTREAM_FIELDS)]},
        is_list=True,
        is_nested=True,
        list_fields=list_upstreams,
    ),
]
