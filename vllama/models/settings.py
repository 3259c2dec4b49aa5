"""Settings of models: of single ones, of servers that have some, of where all lie and come from.

A table `[models."NAME"]` is for a model's name or a pattern (`qwen3:*`). All tables that match a
model are merged, field by field: an exact name wins over patterns, a pattern with more literal
characters over one with fewer, and of equals the later one in the file wins.

Pure. Filled by `config`; nothing here reads the environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vllama.models.names.ref import list_spellings

SPREAD = "spread"
WILDCARDS = "*?["


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What the user set for a model; None is "not set".

    `context` is in tokens per request, `keep_alive_s` may be `math.inf`. `gpus` are indices of GPUs
    or "spread" (all of them). A `pin`ned model stays loaded, whatever requests say. Models with a
    higher `priority` are unloaded after others. `inspect`: requests may look inside it.
    `cache_disk` is the most that its conversations take on disk, in bytes; False: none are
    kept, True: as of all models. `defaults` hold where a request says
    nothing; `force` replaces what it says, and what `strip` names is taken out of it; their names
    are Ollama's. `pass_fields` are further fields of requests that its engine is sent. `fallback`
    are the links that are tried in order where this model cannot answer, each after at most
    `fallback_after_s` without a token. `nodes` are those of a cluster that may answer for it.

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
    inspect: bool | None = None
    cache_disk: bool | int | None = None
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
    nodes: tuple[str, ...] | None = None
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
        wanted = {form for name in names for form in list_spellings(name)}
        matching = [
            (_rank(pattern), pattern, settings)
            for pattern, settings in self.tables
            if any(fnmatchcase(name, form) for name in wanted for form in list_spellings(pattern))
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
        wanted = list_spellings(name)
        for model, settings in self.tables:
            if any(wanted & list_spellings(alias) for alias in settings.aliases or ()):
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


HUB_ADDRESS = "https://huggingface.co"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTraits:
    """What the user says of an upstream or of one of its models; None is "find out".

    `tool_calls`: `parsed` by the server, left in the `text`, or `none`. `thinking`: the same with
    `tags` for the text. `context` is in tokens. `embeddings`: it makes vectors and nothing else.
    """

    tool_calls: str | None = None
    thinking: str | None = None
    context: int | None = None
    embeddings: bool | None = None
    images: bool | None = None

    def __str__(self) -> str:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return " ".join(
            f"{name}={str(value).lower()}" for name, value in values if value is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """A server that somebody else runs; `url` may end in `/v1`.

    `name` is empty for one that was given by its URL alone. `key_env` and `key_file` say where its
    `key` was found. `models` maps names here to names there; None: all that it lists, by their own
    names. A server of `weight` 2 gets twice as many requests as one of 1. `concurrent` bounds the
    requests to it at once, for each of its models; None: no bound. `pass_fields` are further fields
    of requests that it is sent. It is up if GET `health_path` is answered. `is_listed` False:
    clients see none of its models, which are only links of a fallback chain. `linked` are the
    models that such links name; they may be asked for by their links, too.
    """

    url: str
    name: str = ""
    key: str | None = field(default=None, repr=False)
    key_env: str | None = None
    key_file: Path | None = None
    models: Mapping[str, str] | None = None
    weight: int = 1
    concurrent: int | None = None
    health_path: str | None = None
    health_interval_s: float = 5.0
    traits: UpstreamTraits = UpstreamTraits()
    pass_fields: tuple[str, ...] = ()
    is_listed: bool = True
    linked: frozenset[str] = frozenset()

    def match(self, link: str) -> str | None:
        """Return the model that a link to this server names, None if it is not to this server."""
        name, _, model = link.partition(":")
        if self.name and model and name == self.name:
            return model
        url, _, model = link.partition("#")
        return model if model and "://" in url and find_root(url) == self.root else None

    def allows(self, model: str) -> bool:
        """Return whether clients may ask for a model by its link."""
        if model in self.linked:
            return True
        models = self.models
        return self.is_listed and (models is None or model in {*models, *models.values()})

    @property
    def id(self) -> str:
        """What tells it from the others: its name, or else its address."""
        return self.name or self.root

    @property
    def root(self) -> str:
        """The address that `/v1/models` is put after."""
        return find_root(self.url)


def find_root(url: str) -> str:
    """Return a server's address without `/v1`."""
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsSettings:
    """Where models lie, and how the hub and registries are asked.

    `data_dir` is where vllama's own models and uploaded files lie; None: it keeps none.
    `hf_endpoint` None means https://huggingface.co. `hf_token` None lets huggingface_hub use the
    login that `hf auth login` stored. `upstream_traits` are by a server's URL or by a model's id on
    it. `aliases` are the user's own names of hub models, `tables` the settings of single models.
    `package_dirs` are the folders searched for models in Python packages; None means `sys.path`.
    `ollama_dirs` are stores of Ollama's: all are read, the first one is pulled into;
    `ollama_registry` is asked for library names, None: the hub is. `lmstudio_dirs` are LM
    Studio's folders of models. `allowed_registries` are the hosts to pull from, none means any;
    `most_file_bytes` is the largest file to be fetched, None: any. `connections` is the number of
    connections of one pull, `part_bytes` the largest range asked for at once. `stall_timeout_s`
    bounds the silence on a connection, `attempts` the tries in a row without a new byte; the pause
    between them starts at `backoff_s` and doubles.
    """

    hf_cache_dir: Path
    data_dir: Path | None = None
    upstreams: tuple[UpstreamSettings, ...] = ()
    tables: ModelTables = ModelTables()
    upstream_traits: Mapping[str, UpstreamTraits] = field(default_factory=dict)
    hf_endpoint: str | None = None
    hf_token: str | None = None
    offline: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    package_dirs: tuple[Path, ...] | None = None
    ollama_dirs: tuple[Path, ...] = ()
    ollama_registry: str | None = None
    lmstudio_dirs: tuple[Path, ...] = ()
    allowed_registries: tuple[str, ...] = ()
    most_file_bytes: int | None = None
    connections: int = 4
    part_bytes: int = 32 * 1024 * 1024
    request_timeout_s: float = 10.0
    stall_timeout_s: float = 15.0
    attempts: int = 6
    backoff_s: float = 1.0

    @property
    def hub_address(self) -> str:
        """The hub's URL, without a slash at its end."""
        return (self.hf_endpoint or HUB_ADDRESS).rstrip("/")
