"""Tables by name in the config file, `[models."NAME"]` and `[upstreams.NAME]`, as settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vllama.base.spelling import suggest
from vllama.config import parse
from vllama.config.kinds import Kind
from vllama.config.setting import Effect
from vllama.config.table_fields import MODEL_FIELDS, UPSTREAM_FIELDS, Field
from vllama.models.names.ref import list_spellings
from vllama.models.settings import ModelSettings, UpstreamSettings, is_pattern

ListedField = tuple[tuple[str, ...], object, str, Effect]
"""The keys of a field within its setting, its value, that as text without secrets, its effect."""


class TableError(ValueError):
    """A table is wrong; `path` are the keys down to the wrong one."""

    def __init__(self, path: Sequence[str], reason: str, hint: str) -> None:
        super().__init__(reason)
        self.path = tuple(path)
        self.reason = reason
        self.hint = hint


def read_models(value: object) -> tuple[tuple[str, ModelSettings], ...]:
    """Accept the tables of models, by name or pattern. Raises TableError."""
    found = []
    for name, table in _read_tables("models", value).items():
        given = _read_fields(("models", name), table, MODEL_FIELDS)
        for key in ("aliases", "preload"):
            if given.get(key) and is_pattern(name):
                raise TableError(
                    ("models", name, key), "a pattern stands for several models",
                    hint="write it into the table of one model",
                )  # fmt: skip
        found.append((name, ModelSettings(**given)))
    _check_aliases(found)
    _check_fallbacks(found)
    return tuple(found)


def read_upstreams(value: object) -> tuple[UpstreamSettings, ...]:
    """Accept URLs, or the tables of named upstreams. Raises TableError."""
    if isinstance(value, str):
        value = parse.by_comma(value)
    if isinstance(value, Sequence):
        return tuple(UpstreamSettings(url=parse.plain(str(url))) for url in value)
    found = []
    for name, table in _read_tables("upstreams", value).items():
        path = ("upstreams", name)
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise TableError(path, "not a name", hint="use letters, digits, '-', '_' and '.'")
        given = _read_fields(path, table, UPSTREAM_FIELDS)
        if "url" not in given:
            raise TableError(path, "it has no url", hint='add: url = "http://host:port"')
        ways = [key for key in ("key", "key_env", "key_file") if key in given]
        if len(ways) > 1:
            hint = f"leave out {ways[0]}"
            raise TableError((*path, ways[1]), "its key is given twice", hint=hint)
        found.append(UpstreamSettings(name=name, **given))
    return tuple(found)


def describe_tables(fields: Iterable[Field]) -> dict[str, Any]:
    """Return the JSON schema of tables by name."""
    one = {
        "type": "object",
        "additionalProperties": False,
        "properties": {each.key: {**each.kind.schema, "description": each.help} for each in fields},
    }
    return {"type": "object", "additionalProperties": one}


def _read_tables(key: str, value: object) -> Mapping[str, Mapping[str, object]]:
    example = "keep_alive = -1" if key == "models" else 'url = "http://host:port"'
    hint = f'write [{key}."NAME"], and below it lines such as: {example}'
    if not isinstance(value, Mapping):
        raise TableError((key,), "not tables", hint=hint)
    for name, table in value.items():
        if not isinstance(table, Mapping):
            raise TableError((key, name), "not a table", hint=hint)
    return value


def _read_fields(
    path: tuple[str, str], table: Mapping[str, object], fields: Sequence[Field]
) -> dict[str, Any]:
    """Return the values of a table by the names of the settings' fields."""
    known = {each.key: each for each in fields}
    found = {}
    for key, value in table.items():
        if key not in known:
            raise TableError((*path, key), "no such field", hint=suggest(key, known))
        one = known[key]
        try:
            found[one.field] = one.kind.read(value)
        except ValueError as error:
            hint = f"write it like {key} = {one.example} ({one.help})"
            raise TableError((*path, key), str(error), hint=hint) from None
    return found


def _check_aliases(tables: Iterable[tuple[str, ModelSettings]]) -> None:
    """Refuse an alias that two models have, or that has a table of its own."""
    tables = list(tables)
    names = {each for name, _ in tables for each in list_spellings(name)}
    owners: dict[str, str] = {}
    for name, settings in tables:
        for alias in settings.aliases or ():
            own = list_spellings(alias)
            if own & names and not own & list_spellings(name):
                raise TableError(
                    ("models", name, "aliases"),
                    f"'{alias}' has a table of its own",
                    hint="take it out here, or rename that table",
                )
            owner = next((owners[each] for each in own if each in owners), name)
            if owner != name:
                raise TableError(
                    ("models", name, "aliases"),
                    f"'{alias}' is an alias of '{owner}' already",
                    hint="take it out of one of them",
                )
            owners |= dict.fromkeys(own, name)


def _check_fallbacks(tables: Iterable[tuple[str, ModelSettings]]) -> None:
    """Refuse a model that is its own fallback."""
    for name, settings in tables:
        own = {form for each in (name, *(settings.aliases or ())) for form in list_spellings(each)}
        for link in settings.fallback or ():
            if own & list_spellings(link):
                raise TableError(
                    ("models", name, "fallback"),
                    f"'{link}' is the model itself",
                    hint="take it out: the model is tried first anyway",
                )


def list_models(tables: Iterable[tuple[str, ModelSettings]]) -> Iterator[ListedField]:
    """Yield the fields that are set for models."""
    for name, settings in tables:
        for each in MODEL_FIELDS:
            if (value := settings.given.get(each.field)) is not None:
                yield (name, each.key), value, each.write(value), each.effect


def list_upstreams(upstreams: Iterable[UpstreamSettings]) -> Iterator[ListedField]:
    """Yield the URLs of upstreams without names, and the fields that are set for the others."""
    upstreams = tuple(upstreams)
    if urls := tuple(each.url for each in upstreams if not each.name):
        yield (), urls, ", ".join(urls), Effect.NOW
    usual = UpstreamSettings(url="")
    for upstream in upstreams:
        for each in UPSTREAM_FIELDS if upstream.name else ():
            if (value := getattr(upstream, each.field)) != getattr(usual, each.field):
                yield (upstream.name, each.key), value, each.write(value), each.effect


MODELS = Kind(
    parse=read_models,
    schema=describe_tables(MODEL_FIELDS),
    is_nested=True,
    list_fields=list_models,
)
UPSTREAMS = Kind(
    parse=read_upstreams,
    metavar="URL",
    schema={
        "anyOf": [
            {"type": "array", "items": {"type": "string"}},
            {"type": "string"},
            describe_tables(UPSTREAM_FIELDS),
        ]
    },
    is_nested=True,
    is_list=True,
    list_fields=list_upstreams,
)
