"""Settings of single models and of groups of models: the tables `[models."NAME"]`.

A table's name is a model's name or a pattern (`qwen3:*`). All tables that match a model are merged,
field by field: an exact name wins over patterns, a pattern with more literal characters over one
with fewer, and of equals the later one in the file wins. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

SPREAD = "spread"
WILDCARDS = "*?["


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What the user set for a model; None is "not set".

    `context` is in tokens per request, `keep_alive_s` may be `math.inf`. `gpus` are indices of GPUs
    or "spread" (all of them). A `pin`ned model stays loaded, whatever requests say. Models with a
    higher `priority` are unloaded after others. `defaults` hold where a request says nothing;
    `force` replaces what it says, and what `strip` names is taken out of it; their names are
    Ollama's. `pass_fields` are further fields of requests that its engine is sent. `fallback` are
    the links that are tried in order where this model cannot answer, each after at most
    `fallback_after_s` without a token.

    `origins` has the table that each field comes from, or the tables of one that is merged.
    """

    engine: str | None = None
    engine_args: tuple[str, ...] | None = None
    context: int | None = None
    parallel: int | None = None
    replicas: int | None = None
    gpus: tuple[int, ...] | str | None = None
    kv_cache_type: str | None = None
    strict: bool | None = None
    keep_alive_s: float | None = None
    pin: bool | None = None
    preload: bool | None = None
    priority: int | None = None
    max_tokens: int | None = None
    defaults: Mapping[str, object] | None = None
    force: Mapping[str, object] | None = None
    strip: tuple[str, ...] | None = None
    pass_fields: tuple[str, ...] | None = None
    system: str | None = None
    aliases: tuple[str, ...] | None = None
    draft: str | None = None
    fallback: tuple[str, ...] | None = None
    fallback_after_s: float | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are set."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if name != "origins" and value is not None}


NOTHING = ModelSettings()
MERGED = ("defaults", "force")
"""Fields that several tables may contribute to."""


@dataclass(frozen=True, slots=True)
class ModelTables:
    """All tables, in the order of the file: pairs of a name or pattern, and its settings."""

    tables: tuple[tuple[str, ModelSettings], ...] = ()

    def find(self, names: Iterable[str]) -> ModelSettings:
        """Return the merged settings of the model that has these `names`."""
        if not self.tables:
            return NOTHING
        wanted = {form for name in names for form in _list_forms(name)}
        matching = [
            (_rank(pattern), pattern, settings)
            for pattern, settings in self.tables
            if any(fnmatchcase(name, form) for name in wanted for form in _list_forms(pattern))
        ]
        merged = NOTHING
        origins: dict[str, str] = {}
        for _, pattern, settings in sorted(matching, key=lambda match: match[0]):
            merged = replace(merged, **_merge(merged, settings))
            for name in settings.given:
                own, below = f'models."{pattern}"', origins.get(name)
                origins[name] = f"{below}, {own}" if below and name in MERGED else own
        return replace(merged, origins=origins) if matching else NOTHING

    def find_alias(self, name: str) -> str | None:
        """Return the model that has the alias `name`, None if there is none."""
        wanted = _list_forms(name)
        for model, settings in self.tables:
            if any(
                form in wanted for alias in settings.aliases or () for form in _list_forms(alias)
            ):
                return model
        return None

    def list_aliases(self) -> Sequence[tuple[str, str]]:
        """Return all aliases, each with its model."""
        return [(alias, model) for model, each in self.tables for alias in each.aliases or ()]

    def list_preloaded(self) -> Sequence[str]:
        """Return the models that are loaded at the start."""
        return [model for model, each in self.tables if each.preload]

    def list_links(self) -> Sequence[str]:
        """Return all links of all fallback chains, without duplicates."""
        links = (link for _, each in self.tables for link in each.fallback or ())
        return list(dict.fromkeys(links))


def is_pattern(name: str) -> bool:
    """Tell whether the name of a table stands for several models."""
    return any(character in name for character in WILDCARDS)


def _merge(below: ModelSettings, above: ModelSettings) -> dict[str, Any]:
    """Return the fields that are set above; tables of parameters are merged by name, too."""
    merged = above.given
    for name in MERGED:
        if name in merged and (lower := getattr(below, name)):
            merged[name] = {**lower, **merged[name]}
    return merged


def _rank(pattern: str) -> tuple[bool, int]:
    """Return the order in which tables are merged, the strongest last."""
    literal = sum(character not in WILDCARDS for character in pattern)
    return not is_pattern(pattern), literal


def _list_forms(name: str) -> set[str]:
    """Return the ways to write a name: in lower case, and without `:latest` and the hub's host."""
    lowered = name.strip().lower()
    forms = {lowered, lowered.removesuffix(":latest")}
    return forms | {form.removeprefix("hf.co/").removeprefix("huggingface.co/") for form in forms}
