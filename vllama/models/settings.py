"""Settings of the package `models`: where models lie, how they are fetched.

Filled by `config`; nothing here reads the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from vllama.models.model_settings import ModelTables

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
