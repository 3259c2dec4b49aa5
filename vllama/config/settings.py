"""The assembled settings and their defaults."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT, Struct, field
from msgspec.structs import fields

from vllama.config import address
from vllama.config.folders import default_data_dir, default_hf_home, default_models_dir

SECRETS = frozenset({"api_key", "client_key", "upstream_key", "hf_token"})
"""The fields of `Config` that are never shown."""


class Unset(Enum):
    """Type of `UNSET`, the value of a flag that was not given."""

    UNSET = "unset"


UNSET = Unset.UNSET


class Config(Struct, frozen=True, kw_only=True):
    """Every setting of one run. None means: decide by what is there.

    `port` 0 takes any free port. `context_length` is in tokens, `gpu_layers` -1 means all.
    `keep_alive_s` may be `math.inf`; `load_timeout_s` and `hang_timeout_s` None wait for ever.
    `num_parallel` and `max_loaded_models` 0 leave it to engine and memory. `api_key` has those of
    `api_key_file` too. `allow_registry` () allows all, `max_blob_size_bytes` None any size. `notes`
    are warnings for the user.
    """

    scheme: str = "http"
    host: str = "127.0.0.1"
    port: int = 11434
    model: str | None = None
    engine: str | None = None
    strict: bool = False
    context_length: int | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    keep_alive_s: float = 300.0
    load_timeout_s: float | None = 300.0
    drain_timeout_s: float = 10.0
    num_parallel: int = 0
    max_loaded_models: int = 0
    max_queue: int = 512
    replicas: int = 1
    hang_timeout_s: float | None = 30.0
    origins: tuple[str, ...] = ()
    api_key: tuple[str, ...] = ()
    api_key_file: Path | None = None
    client_key: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    read_only: bool = False
    allow_registry: tuple[str, ...] = ()
    max_blob_size_bytes: int | None = None
    upstreams: tuple[str, ...] = ()
    upstream_key: str | None = None
    flash_attention: bool | None = None
    kv_cache_type: str | None = None
    gpu_overhead_bytes: int = 0
    engine_paths: tuple[tuple[str, Path], ...] = ()
    engine_args: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    models_dir: Path = field(default_factory=default_models_dir)
    ollama_registry: str | None = None
    lmstudio_dir: Path | None = None
    hf_cache_dir: Path = field(default_factory=lambda: default_hf_home() / "hub")
    hf_endpoint: str | None = None
    hf_token: str | None = None
    hf_offline: bool = False
    download_connections: int = 4
    data_dir: Path = field(default_factory=default_data_dir)
    log_dir: Path = field(default_factory=lambda: default_data_dir() / "logs")
    run_dir: Path = field(default_factory=lambda: default_data_dir() / "run")
    nohistory: bool = False
    debug: bool = False
    log_format: str = "text"
    config_file: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Where a client on this machine finds the server."""
        return address.url(self.scheme, address.reachable_host(self.host), self.port)

    @property
    def key_to_send(self) -> str | None:
        """The key that the command line shows to the server, None: it has none."""
        return self.api_key[0] if self.api_key else self.client_key

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """The folders that hold nothing but what vllama has written, whoever made them."""
        data = (self.data_dir,) if self.data_dir == default_data_dir() else ()
        return data + tuple(f for f in (self.log_dir, self.run_dir) if f.parent == self.data_dir)

    @property
    def exposure(self) -> str | None:
        """The warning for a server that others can reach and that wants no key."""
        if self.api_key or address.is_loopback(self.host):
            return None
        where = address.url("https" if self.tls_cert else "http", self.host, self.port)
        can = "run its models" if self.read_only else "run, add, replace and delete its models"
        return (
            f"no key protects {where}: everybody who can reach it can {can}; set keys with "
            "--api-key-file, or listen on 127.0.0.1 only, behind a proxy or firewall"
        )

    def __repr__(self) -> str:
        """Show all but the secrets."""
        shown = (name for name in self.__struct_fields__ if name not in SECRETS)
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def default(name: str) -> Any:
    """Return the default of a field; `NODEFAULT` if it depends on this machine."""
    return next((f.default for f in fields(Config) if f.name == name), NODEFAULT)
