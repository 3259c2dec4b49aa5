"""All settings, each declared once: type, default, kind of value, help, flag and variables.

From a field of `Config` follow the flag of `serve`, the variables `VLLAMA_*` and Ollama's, the key
of the config file, its JSON schema, and the reference page. Those of engines are in
`engine_settings`, as plans are given that group alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

from vllama.base import kinds
from vllama.base.folders import default_data_dir, default_hf_home, default_models_dir, keys_file
from vllama.base.setting import Effect, Setting, list_declared, setting
from vllama.config import address
from vllama.config.engine_settings import EngineSettings
from vllama.config.parse import Captures, Folders, Groups, ListeningAddress, Registry, Upstreams

Aliases = Annotated[tuple[tuple[str, str], ...], kinds.table("name=model", kinds.Name)]
COMMANDS, RESTART = Effect.COMMANDS, Effect.RESTART


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The part of `Config` about the server and its clients.

    `port` 0 takes any free port. `api_key` has the keys of `api_key_file` too.
    """

    host: ListeningAddress = setting(
        "address to listen on", "127.0.0.1", example="0.0.0.0:11434", flag=True,
        foreign="OLLAMA_HOST", effect=RESTART,
    )  # fmt: skip
    port: Annotated[int, kinds.number(0, 65535)] = setting(
        "port to listen on; 0: any free port", 11434, flag=True, effect=RESTART
    )
    picker_port: Annotated[int, kinds.number(0, 65535)] = setting(
        "port for metrics of endpoint pickers, served without a key; 0: none", 0, example="9400",
        flag=True, effect=RESTART,
    )  # fmt: skip
    watch: bool = setting(
        "apply changes of the config file without a signal", False, flag=True, effect=RESTART
    )
    drain_timeout_s: kinds.Duration = setting(
        "grace period for running responses when the server stops", 10.0, effect=RESTART
    )
    shutdown_delay_s: kinds.Duration = setting(
        "time a stopping server accepts requests while /readyz fails", 0.0, example="10s",
        effect=RESTART,
    )  # fmt: skip
    max_buffer_size_bytes: kinds.Size = setting(
        "memory limit for request bodies and unread responses", 512 * 1024 * 1024, effect=RESTART
    )
    origins: tuple[kinds.Url, ...] = setting(
        "additional origins allowed for browser requests", (),
        example="https://chat.example", foreign="OLLAMA_ORIGINS",
    )  # fmt: skip
    api_key: tuple[kinds.Key, ...] = setting(
        "API keys that clients must send; api_key_file hides them from other users", (),
        example="sk-1234", flag=True, secret=True,
    )  # fmt: skip
    api_key_file: kinds.File | None = setting(
        "file with API keys, one per line; reloaded on SIGHUP", example="/etc/vllama/keys",
        flag=True,
    )  # fmt: skip
    require_keys: bool = setting(
        "reject requests without a key, even if no key exists", False, flag=True, effect=RESTART
    )
    open: bool = setting(
        "serve other machines without a key; false: refuse to start", True, effect=RESTART
    )
    groups: Groups = setting(
        "limits and budgets that keys share: tables [groups.NAME]", (),
        example='{ research = { budget = "50/month" } }',
    )  # fmt: skip
    currency: kinds.Name = setting("currency of prices and budgets", "USD", example="EUR")
    client_key: kinds.Key | None = setting(
        "API key sent by commands; default: the first api_key", example="sk-1234",
        foreign="OLLAMA_API_KEY", secret=True, effect=COMMANDS,
    )  # fmt: skip
    tls_cert: kinds.File | None = setting(
        "TLS certificate chain (PEM) for https; reloaded on SIGHUP", example="/etc/vllama/cert.pem",
        flag=True, effect=RESTART,
    )  # fmt: skip
    tls_key: kinds.File | None = setting(
        "private key (PEM), if not in the certificate file",
        example="/etc/vllama/key.pem", flag=True, effect=RESTART,
    )  # fmt: skip
    read_only: bool = setting(
        "reject changes of models, settings and keys over HTTP", False, flag=True
    )
    inspect_code: bool = setting(
        "let admin keys send fields with code, files or addresses, such as vllm_xargs", False,
        flag=True,
    )  # fmt: skip
    no_ui: bool = setting("do not serve the web UI under /ui/", False, flag=True)
    mcp_origins: tuple[kinds.Origin, ...] = setting(
        "origins of MCP servers that the web UI may connect to", (), example="https://mcp.example"
    )


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """The part of `Config` that says where models come from.

    `allow_registry` () allows all, `max_blob_size_bytes` None any size.
    """

    upstreams: Upstreams = setting(
        "OpenAI-compatible servers to forward requests to: URLs, or tables [upstreams.NAME]", (),
        example="http://127.0.0.1:8000", flag=True,
    )  # fmt: skip
    upstream_key: Annotated[str, kinds.text("KEY", kinds.read_text)] | None = setting(
        "API key for the upstreams", example="sk-…", flag=True, secret=True
    )
    nodes: tuple[kinds.NodeUrl, ...] = setting(
        "vllama servers whose models this server also offers; dns+URL: all behind a name", (),
        example="http://10.0.0.5:11434", flag=True,
    )  # fmt: skip
    node_key_file: kinds.File | None = setting(
        "file with the key shared by the servers of a cluster (vllama nodes key)",
        example="/etc/vllama/node.key", flag=True, effect=RESTART,
    )  # fmt: skip
    node_certs: kinds.File | None = setting(
        "file with the only certificates (PEM) accepted from https nodes",
        example="/etc/vllama/nodes.pem", flag=True, effect=RESTART,
    )  # fmt: skip
    no_local: bool = setting(
        "forward to nodes only; start no engine on this machine", False, flag=True,
        effect=RESTART,
    )  # fmt: skip
    allow_registry: tuple[Registry, ...] = setting(
        "the only hosts allowed for pulls, such as huggingface.co", (),
        example="huggingface.co", flag=True,
    )  # fmt: skip
    models_file: kinds.File | None = setting(
        "file with models to download whenever it changes, one name per line",
        example="/etc/vllama/models", flag=True,
    )  # fmt: skip
    max_blob_size_bytes: kinds.AutoOrZero[kinds.Size] = setting(
        "maximum size of a file to upload or pull; 0: no limit", example="20GB", flag=True
    )
    folders: Folders = setting("folders with your own model files", (), example="~/models")
    aliases: Aliases = setting(
        "additional names for models", (), example="mine=hf.co/org/repo:Q4_K_M"
    )
    models_dir: kinds.Folder = setting(
        "Ollama's model store, for reading and pulling", example="~/.ollama/models",
        factory=default_models_dir, foreign="OLLAMA_MODELS",
    )  # fmt: skip
    ollama_registry: kinds.Url | None = setting(
        "Ollama registry for library names, instead of the hub", example="https://registry.example"
    )
    lmstudio_dir: kinds.Folder | None = setting(
        "LM Studio's model folder, read in place", example="~/.lmstudio/models"
    )
    hf_cache_dir: kinds.Folder = setting(
        "cache of the Hugging Face hub", example="~/.cache/huggingface/hub",
        factory=lambda: default_hf_home() / "hub", foreign="HF_HUB_CACHE",
    )  # fmt: skip
    hf_endpoint: kinds.Url | None = setting(
        "hub to use instead of https://huggingface.co", example="https://hub.example",
        foreign="HF_ENDPOINT",
    )  # fmt: skip
    hf_token: Annotated[str, kinds.text("TOKEN", str.strip)] | None = setting(
        "token for gated and private models", example="hf_xxxx", foreign="HF_TOKEN", secret=True
    )
    hf_offline: bool = setting("never contact the hub", False, foreign="HF_HUB_OFFLINE")
    download_connections: Annotated[int, kinds.number(1, 64)] = setting(
        "connections per download", 4, foreign="OLLAMA_MAX_TRANSFER_STREAMS", remote=True
    )


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """The part of `Config` that says where to write, and how much."""

    data_dir: kinds.Folder = setting(
        "folder for all data written by vllama", example="~/.local/share/vllama",
        factory=default_data_dir, effect=RESTART,
    )  # fmt: skip
    log_dir: kinds.Folder = setting(
        "folder for the logs of vllama and its engines", example="~/.local/share/vllama/logs",
        factory=lambda: default_data_dir() / "logs", effect=RESTART,
    )  # fmt: skip
    run_dir: kinds.Folder = setting(
        "folder for the records of running engines", example="~/.local/share/vllama/run",
        factory=lambda: default_data_dir() / "run", effect=RESTART,
    )  # fmt: skip
    nohistory: bool = setting(
        "do not save prompt history", False, foreign="OLLAMA_NOHISTORY", effect=COMMANDS
    )
    debug: bool = setting("log details", False, flag=True, foreign="OLLAMA_DEBUG", remote=True)
    capture: Captures = setting(
        "capture the last N requests and responses, or 1 GiB of them in the folder DIR", 0,
        example="100", flag=True, effect=RESTART,
    )  # fmt: skip
    batch_files_bytes: kinds.Size = setting(
        "disk space for batch files; one key may use a quarter of it", 4 * 1000**3, effect=RESTART
    )
    log_format: Annotated[str, kinds.choice("text", "json")] = setting(
        "format of the log", "text", example="json", flag=True, effect=RESTART
    )
    otlp_endpoint: kinds.HttpUrl | None = setting(
        "OpenTelemetry collector for traces, over HTTP (needs the extra otel)",
        example="http://127.0.0.1:4318", flag=True, foreign="OTEL_EXPORTER_OTLP_ENDPOINT",
        effect=RESTART,
    )  # fmt: skip

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """The folders that hold nothing but what vllama has written, whoever made them."""
        data = (self.data_dir,) if self.data_dir == default_data_dir() else ()
        return data + tuple(f for f in (self.log_dir, self.run_dir) if f.parent == self.data_dir)

    @property
    def slot_dir(self) -> Path:
        """The folder of the conversations, whether any are kept or not."""
        return self.data_dir / "conversations"

    @property
    def capture_dir(self) -> Path:
        """The folder of the captures, whether any are kept or not."""
        return self.capture if isinstance(self.capture, Path) else self.data_dir / "captures"


# the last base comes first where settings are listed
@dataclass(frozen=True, kw_only=True)
class Config(OutputSettings, SourceSettings, EngineSettings, ServerSettings):
    """The settings of one run: an immutable snapshot. None means: decide by what is there.

    Its own fields are not settings: `scheme` follows from the address and the certificate, `notes`
    are warnings for the user, and `sources` says of each setting that was given where it came from.
    """

    scheme: str = "http"
    config_file: Path | None = None
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def url(self) -> str:
        """Address of the server for clients on this machine."""
        return address.url(self.scheme, address.reachable_host(self.host), self.port)

    @property
    def key_to_send(self) -> str | None:
        """The key that the command line shows to the server, None: it has none."""
        return self.api_key[0] if self.api_key else self.client_key

    @property
    def is_head(self) -> bool:
        """True if it offers the models of other servers of a cluster."""
        return bool(self.nodes)

    @property
    def stop_limit_s(self) -> float:
        """The longest that a stop waits for clients, before it ends the engines."""
        return self.shutdown_delay_s + self.drain_timeout_s

    @property
    def wants_keys(self) -> bool:
        """True if a server needs keys that starts with these settings."""
        from vllama.accounts.keys.store import wants_keys  # most commands need no file of keys

        return bool(self.api_key) or self.require_keys or wants_keys(keys_file(self.data_dir))

    @property
    def exposure(self) -> str | None:
        """The warning for a server that others can reach and that wants no key."""
        is_node = self.node_key_file is not None and not self.is_head
        if address.is_loopback(self.host) or is_node or self.wants_keys:
            return None
        scheme = "https" if self.tls_cert else "http"
        return address.warn_of_exposure(scheme, self.host, self.port, read_only=self.read_only)


SETTINGS = list_declared(Config)
BY_FIELD: Mapping[str, Setting] = {each.field: each for each in SETTINGS}
_NAMES = ("Output", "Models and sources", "Engines", "Server")
GROUPS: Mapping[str, str] = {
    each.name: name
    for name, group in zip(_NAMES, Config.__bases__, strict=True)
    for each in fields(group)
}
"""The group that a field is shown in."""
