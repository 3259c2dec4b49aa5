"""The assembled settings and their defaults."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import platformdirs

from vllama.config import address

APP = "vllama"
OLLAMA_SERVICE_DIR = Path("/usr/share/ollama/.ollama/models")
"""Where Ollama keeps models when its installer has made it a service of Linux."""


class Unset(Enum):
    """Type of `UNSET`, the value of a flag that was not given."""

    UNSET = "unset"


UNSET = Unset.UNSET


def default_data_dir() -> Path:
    """Return where the platform wants programs to keep their data."""
    return platformdirs.user_data_path(APP, appauthor=False)


def default_hf_home() -> Path:
    """Return where huggingface_hub keeps its cache and token."""
    return Path.home() / ".cache" / "huggingface"


def default_models_dir() -> Path:
    """Return where Ollama keeps a user's models."""
    return Path.home() / ".ollama" / "models"


def default_lmstudio_dirs() -> tuple[Path, ...]:
    """Return where LM Studio keeps models: the home folder that it notes, today's, the old one."""
    homes: list[Path] = []
    try:
        noted = (Path.home() / ".lmstudio-home-pointer").read_text().strip()
        homes += [Path(noted)] if noted else []
    except (OSError, UnicodeDecodeError):
        pass
    homes += [Path.home() / ".lmstudio", Path.home() / ".cache" / "lm-studio"]
    return tuple(dict.fromkeys(home / "models" for home in homes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting of one run. None means: decide by what is there.

    `port` 0 takes any free port. `context_length` is in tokens, `gpu_layers` -1 means all.
    `keep_alive_s` may be `math.inf`; `load_timeout_s` and `hang_timeout_s` None wait for ever.
    `num_parallel` and `max_loaded_models` 0 leave it to engine and memory. `notes` are warnings
    for the user.
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
    api_key: tuple[str, ...] = field(default=(), repr=False)
    client_key: str | None = field(default=None, repr=False)
    upstreams: tuple[str, ...] = ()
    upstream_key: str | None = field(default=None, repr=False)
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
    hf_token: str | None = field(default=None, repr=False)
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


def default(name: str) -> Any:
    """Return the default of a field; `MISSING` if it depends on this machine."""
    return next((f.default for f in fields(Config) if f.name == name), MISSING)
