"""Settings of models: of single ones, of servers that have some, of where all lie and come from.

A table `[models."NAME"]` is for a model's name or a pattern (`qwen3:*`). All tables that match a
model are merged, field by field: an exact name wins over patterns, a pattern with more literal
characters over one with fewer, and of equals the later one in the file wins.

Pure. Filled by `config`; nothing here reads the environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from vllama.accounts.usage.money import Price
from vllama.base import kinds
from vllama.base.setting import Effect, list_declared, make_kind, setting
from vllama.models import table_kinds
from vllama.models.names.ref import list_spellings

WILDCARDS = "*?["
LOAD = Effect.NEXT_LOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTraits:
    """Settings of an upstream or of one of its models; None means "detect"."""

    tool_calls: Annotated[str, kinds.choice("parsed", "text", "none")] | None = setting(
        "the server parses tool calls, leaves them in the text, or has none", example='"text"'
    )
    thinking: Annotated[str, kinds.choice("parsed", "tags", "none")] | None = setting(
        "the server parses thinking, leaves it between tags, or has none", example='"tags"'
    )
    context_length: kinds.Context | None = setting("context length, in tokens", example="8192")
    embeddings: bool | None = setting("embedding model")
    images: bool | None = setting("accepts images", example="false")


Traits = Annotated[UpstreamTraits, make_kind(UpstreamTraits)]
Weight = Annotated[int, kinds.number(1, 1000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Settings of a model, from `[models."NAME"]`; None is "not set".

    `keep_alive_s` may be `math.inf`. `cache_disk` is in bytes; True: as of all models. `force` and
    `strip` win over `defaults`; their names are Ollama's. Each link of `fallback` is tried after at
    most `fallback_after_s` without a token.

    `origins` has the table that each field comes from, or the tables of one that is merged.
    """

    engine: kinds.Name | None = setting("engine to use", example='"my-engine"', effect=LOAD)
    engine_args: table_kinds.Arguments | None = setting(
        "additional arguments for the engine", example='["--seed", "1"]', effect=LOAD
    )
    context_length: kinds.Context | None = setting(
        "context length, in tokens", example="8192", effect=LOAD
    )
    num_parallel: kinds.Count | None = setting("parallel requests", example="4", effect=LOAD)
    replicas: table_kinds.Replicas | None = setting(
        "processes that share the model's requests", example="2", effect=LOAD
    )
    gpus: Annotated[tuple[int, ...] | str, table_kinds.GPUS] | None = setting(
        'GPU indices, or "spread" for all GPUs; default: as few as possible',
        example="[0, 1]", effect=LOAD,
    )  # fmt: skip
    rpc: tuple[table_kinds.RpcServer, ...] | None = setting(
        "llama.cpp RPC servers that share it; without encryption or keys: trusted networks only",
        example='["10.0.0.5:50052"]', effect=LOAD,
    )  # fmt: skip
    kv_cache_type: kinds.KvCacheType | None = setting(
        "number format of the KV cache", example='"q8_0"', effect=LOAD
    )
    strict: bool | None = setting("fail instead of trying another plan or the CPU", effect=LOAD)
    inspect: bool | None = setting(
        "let requests collect activations and steer the model; slower", effect=LOAD
    )
    cache_disk: kinds.SizeOrSwitch | None = setting(
        "disk space for conversations; false: none", example='"5GB"', effect=LOAD
    )
    keep_alive_s: kinds.Duration | None = setting(
        "time to keep an idle model loaded; negative: forever", example='"30m"'
    )
    pin: bool | None = setting("keep the model loaded, regardless of requests")
    preload: bool | None = setting("load the model when the server starts", effect=Effect.RESTART)
    priority: Annotated[int, kinds.number(-1000, 1000)] | None = setting(
        "models with a lower priority are unloaded first", example="10"
    )
    max_tokens: kinds.Count | None = setting(
        "upper limit for max_tokens of any request", example="4096"
    )
    defaults: table_kinds.Parameters | None = setting(
        "default parameters of requests", example="{ temperature = 0.6 }"
    )
    force: table_kinds.Parameters | None = setting(
        "parameters that override those of requests", example="{ top_k = 20 }"
    )
    strip: tuple[kinds.Name, ...] | None = setting(
        "parameters to remove from requests", example='["seed"]'
    )
    system: str | None = setting("default system prompt", example='"You are brief."')
    pass_fields: tuple[table_kinds.PassedField, ...] | None = setting(
        "additional request fields to pass to the engine", example='["my_sampler"]'
    )
    aliases: tuple[table_kinds.ModelName, ...] | None = setting(
        "additional names", example='["gpt-4o-mini"]'
    )
    draft: table_kinds.ModelName | None = setting(
        "small model for speculative decoding; not used where it is slower",
        example='"qwen3:0.6b"',
    )  # fmt: skip
    fallback: tuple[table_kinds.Link, ...] | None = setting(
        "fallback models, in order: URL#MODEL, UPSTREAM:MODEL or a name",
        example='["http://gpu2:11434#qwen3:8b", "openai:gpt-4.1-mini"]',
    )  # fmt: skip
    fallback_after_s: kinds.Duration | None = setting(
        "time limit for the first token before trying the next fallback", example='"30s"'
    )
    nodes: tuple[kinds.Name, ...] | None = setting(
        'cluster nodes that may serve it; "here": the head itself', example='["10.0.0.5"]'
    )
    traits: Traits | None = setting(
        "traits of an upstream's model, as in [upstreams.NAME]", example="{ context_length = 8192 }"
    )
    price: Annotated[Price, make_kind(Price)] | None = setting(
        "prices per million tokens; `cached` defaults to `prompt`",
        example="{ prompt = 0.15, cached = 0.02, generated = 0.60 }",
    )
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
class UpstreamSettings:
    """A server that somebody else runs, as `[upstreams.NAME]` has it.

    `name` is empty for one that was given by its URL alone, which may end in `/v1`. `models` maps
    names here to names there. `is_listed` False: clients see none of its models, which are only
    links of a fallback chain. `linked` are the models that such links name; they may be asked for
    by their links, too.
    """

    name: str = ""
    url: kinds.HttpUrl = setting(
        "address of the server", MISSING, example='"https://api.openai.com/v1"'
    )
    key: kinds.Key | None = setting("its API key", example='"sk-1234"', secret=True)
    key_env: kinds.Name | None = setting(
        "environment variable with its API key", example='"OPENAI_API_KEY"'
    )
    key_file: kinds.File | None = setting(
        "file with its API key", example='"/etc/vllama/openai.key"'
    )
    models: Annotated[Mapping[str, str], table_kinds.NAMES] | None = setting(
        "its models to use, or their names here; default: all",
        example='{ "gpt-mini" = "gpt-4.1-mini" }',
    )  # fmt: skip
    weight: Weight = setting(
        "share of the requests for a model that several upstreams have", 1, example="2"
    )
    concurrent: kinds.Count | None = setting(
        "maximum number of parallel requests per model", example="8"
    )
    health_path: Annotated[str, table_kinds.URL_PATH] | None = setting(
        "path that responds while the server is up", example='"/health"'
    )
    health_interval_s: kinds.Duration = setting("interval of health checks", 5.0, example='"5s"')
    pass_fields: tuple[table_kinds.PassedField, ...] = setting(
        "additional request fields to pass to it", (), example='["provider"]'
    )
    traits: Traits = setting(
        "traits that it does not report: tool_calls, thinking, context_length, embeddings, images",
        UpstreamTraits(), example="{ context_length = 8192 }",
    )  # fmt: skip
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
        """Identity among upstreams: its name, or else its address."""
        return self.name or self.root

    @property
    def root(self) -> str:
        """The address that `/v1/models` is put after."""
        return find_root(self.url)


MODEL_FIELDS = list_declared(ModelSettings)
UPSTREAM_FIELDS = list_declared(UpstreamSettings)


def find_root(url: str) -> str:
    """Return a server's address without `/v1`."""
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsSettings:
    """Folders of models, and access to the hub and registries.

    Fields that are called like a setting have its value.
    `hf_token` None lets huggingface_hub use the login that `hf auth login` stored, "" sends none.
    `tables` are the
    settings of single models. `package_dirs` are the folders searched for models in Python
    packages; None means `sys.path`. `ollama_dirs` are stores of Ollama's: all are read, the first
    one is pulled into. `lmstudio_dirs` are LM Studio's folders of models. `part_bytes` is the
    largest range asked for at once. `stall_timeout_s` bounds the silence on a connection,
    `attempts` the tries in a row without a new byte; the pause between them starts at `backoff_s`
    and doubles.
    """

    hf_cache_dir: Path
    data_dir: Path
    hf_endpoint: str | None = None
    hf_token: str | None = None
    hf_offline: bool = False
    folders: tuple[Path, ...] = ()
    ollama_registry: str | None = None
    allow_registry: tuple[str, ...] = ()
    max_blob_size_bytes: int | None = None
    download_connections: int = 4
    upstreams: tuple[UpstreamSettings, ...] = ()
    tables: ModelTables = ModelTables()
    aliases: Mapping[str, str] = field(default_factory=dict)
    package_dirs: tuple[Path, ...] | None = None
    ollama_dirs: tuple[Path, ...] = ()
    lmstudio_dirs: tuple[Path, ...] = ()
    part_bytes: int = 32 * 1024 * 1024
    request_timeout_s: float = 10.0
    stall_timeout_s: float = 15.0
    attempts: int = 6
    backoff_s: float = 1.0

    @property
    def hub_address(self) -> str:
        """The hub's URL, without a slash at its end."""
        return (self.hf_endpoint or HUB_ADDRESS).rstrip("/")
