"""All settings, each declared once: type, default, kind of value, help, flag and variables.

From a field of `Config` follow the flag of `serve`, the variables `VLLAMA_*` and Ollama's, the key
of the config file, its JSON schema, and the reference page. Those of engines are in
`engine_settings`, as plans are given that group alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from vllama.config import address, kinds, parse, tables
from vllama.config.engine_settings import EngineSettings
from vllama.config.folders import default_data_dir, default_hf_home, default_models_dir, keys_file
from vllama.config.setting import Effect, Setting, setting
from vllama.models.settings import UpstreamSettings, UpstreamTraits


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The part of `Config` about the server and its clients.

    `port` 0 takes any free port. `api_key` has the keys of `api_key_file` too.
    """

    host: str = setting(
        "127.0.0.1", kinds.text("ADDRESS", parse.host), "address to listen on",
        example="0.0.0.0:11434", flag="--host", foreign="OLLAMA_HOST", effect=Effect.RESTART,
    )  # fmt: skip
    port: int = setting(
        11434, kinds.number(0, 65535), "port to listen on; 0: any free port",
        example="11434", flag="--port", effect=Effect.RESTART,
    )  # fmt: skip
    watch: bool = setting(
        False, kinds.SWITCH,
        "apply changes of the config file, and of the files that it names, without a signal",
        example="true", flag="--watch", effect=Effect.RESTART,
    )  # fmt: skip
    drain_timeout_s: float = setting(
        10.0, kinds.DURATION, "how long running answers may take when the server stops",
        example="10s", effect=Effect.RESTART,
    )  # fmt: skip
    shutdown_delay_s: float = setting(
        0.0, kinds.DURATION,
        "how long a stopping server accepts requests while /readyz fails, so that load balancers "
        "notice",
        example="10s", effect=Effect.RESTART,
    )  # fmt: skip
    max_buffer_size_bytes: int = setting(
        512 * 1024 * 1024, kinds.SIZE,
        "memory for request bodies and unread answers; requests beyond it are refused",
        example="512MiB", effect=Effect.RESTART,
    )  # fmt: skip
    origins: tuple[str, ...] = setting(
        (), kinds.many(kinds.URL), "further origins that browsers may send requests from",
        example="https://chat.example", foreign="OLLAMA_ORIGINS",
    )  # fmt: skip
    api_key: tuple[str, ...] = setting(
        (), kinds.many(kinds.KEY),
        "keys; all requests but those for health checks and the page must send one; other users of "
        "this machine can see flags, but not api_key_file",
        example="sk-1234", flag="--api-key", secret=True,
    )  # fmt: skip
    api_key_file: Path | None = setting(
        None, kinds.FILE, "file with more keys, one per line; SIGHUP reads it again",
        example="/etc/vllama/keys", flag="--api-key-file",
    )  # fmt: skip
    require_keys: bool = setting(
        False, kinds.SWITCH,
        "refuse requests without a key, even if the file of named keys is missing or empty",
        example="true", flag="--require-keys", effect=Effect.RESTART,
    )  # fmt: skip
    client_key: str | None = setting(
        None, kinds.KEY,
        "API key that the commands send to the server; default: the first api_key",
        example="sk-1234", foreign="OLLAMA_API_KEY", secret=True, effect=Effect.COMMANDS,
    )  # fmt: skip
    tls_cert: Path | None = setting(
        None, kinds.FILE,
        "TLS certificate and its chain (PEM), to serve https; SIGHUP reloads it",
        example="/etc/vllama/cert.pem", flag="--tls-cert", effect=Effect.RESTART,
    )  # fmt: skip
    tls_key: Path | None = setting(
        None, kinds.FILE, "private key (PEM) of the certificate, if it is in another file",
        example="/etc/vllama/key.pem", flag="--tls-key", effect=Effect.RESTART,
    )  # fmt: skip
    read_only: bool = setting(
        False, kinds.SWITCH,
        "refuse over HTTP to pull, push, create, copy, delete and upload models, and to change "
        "settings and keys",
        example="true", flag="--read-only",
    )  # fmt: skip
    inspect_code: bool = setting(
        False, kinds.SWITCH,
        "let keys with the scope admin send fields that an engine may run as code, or that name "
        "files and addresses, such as vllm_xargs",
        example="true", flag="--inspect-code",
    )  # fmt: skip
    no_ui: bool = setting(
        False, kinds.SWITCH, "do not serve the page for browsers under /ui/",
        example="true", flag="--no-ui",
    )  # fmt: skip
    searxng: str | None = setting(
        None, kinds.HTTP_URL,
        "SearXNG server for /api/web_search; also lets clients fetch public web pages",
        example="http://127.0.0.1:8888", flag="--searxng", effect=Effect.RESTART,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """The part of `Config` that says where models come from.

    `allow_registry` () allows all, `max_blob_size_bytes` None any size.
    """

    upstreams: tuple[UpstreamSettings, ...] = setting(
        (), tables.UPSTREAMS,
        "OpenAI-compatible servers to forward requests to: URLs, or tables [upstreams.NAME]",
        example="http://127.0.0.1:8000", flag="--upstream",
    )  # fmt: skip
    upstream_key: str | None = setting(
        None, kinds.text("KEY"), "key for the upstreams",
        example="sk-…", flag="--upstream-key", secret=True,
    )  # fmt: skip
    upstream_traits: tuple[tuple[str, UpstreamTraits], ...] = setting(
        (), kinds.UPSTREAM_TRAITS,
        "properties of an upstream, or of one of its models, that it does not report: tool_calls "
        "(parsed, text, none), thinking (parsed, tags, none), context, embeddings, images",
        example="http://127.0.0.1:8000=tool_calls=text thinking=tags",
    )  # fmt: skip
    nodes: tuple[str, ...] = setting(
        (), kinds.many(kinds.HTTP_URL),
        "servers that run vllama on other machines, whose models this one offers with its own",
        example="http://10.0.0.5:11434", flag="--node",
    )  # fmt: skip
    node_weights: tuple[tuple[str, int], ...] = setting(
        (), kinds.table("node=N", parse.whole(1, 1000), schema=kinds.number(1, 1000).schema),
        "shares of the requests that nodes are preferred for, where several could answer alike: "
        '1 for those that are not named; "here" is the head itself',
        example="10.0.0.5=3",
    )  # fmt: skip
    node_key_file: Path | None = setting(
        None, kinds.FILE,
        "file with the key between the servers of a cluster: with --node it is shown to the nodes, "
        "without, it is what this node requires (vllama nodes key makes one)",
        example="/etc/vllama/node.key", flag="--node-key-file", effect=Effect.RESTART,
    )  # fmt: skip
    node_certs: Path | None = setting(
        None, kinds.FILE,
        "file with the certificates of the https nodes, in PEM: only these are accepted, whatever "
        "host they name",
        example="/etc/vllama/nodes.pem", flag="--node-certs", effect=Effect.RESTART,
    )  # fmt: skip
    cluster: str | None = setting(
        None, kinds.choice("ray"),
        "let Ray find the nodes: each machine that joins (vllama join) gets a server; without "
        "ray_address a Ray is started here",
        example="ray", flag="--cluster", effect=Effect.RESTART,
    )  # fmt: skip
    ray_address: str | None = setting(
        None, kinds.text("HOST:PORT"), "Ray that somebody else runs; auto: the one on this machine",
        example="10.0.0.4:6379", flag="--ray-address", effect=Effect.RESTART,
    )  # fmt: skip
    no_local: bool = setting(
        False, kinds.SWITCH, "only forward to the nodes; start no engine on this machine",
        example="true", flag="--no-local", effect=Effect.RESTART,
    )  # fmt: skip
    allow_registry: tuple[str, ...] = setting(
        (), kinds.many(kinds.text("HOST", parse.registry)),
        "the only hosts that models may be pulled from (the hub: huggingface.co, Ollama's "
        "registry: registry.ollama.ai)",
        example="huggingface.co", flag="--allow-registry",
    )  # fmt: skip
    max_blob_size_bytes: int | None = setting(
        None, kinds.auto(kinds.SIZE, "0"),
        "largest file that may be uploaded or pulled; 0: no limit",
        example="20GB", flag="--max-blob-size",
    )  # fmt: skip
    folders: tuple[Path, ...] = setting(
        (), kinds.many(kinds.FOLDER, parse.by_pathsep, os.pathsep.join),
        "folders with model files of your own",
        example="~/models",
    )  # fmt: skip
    aliases: tuple[tuple[str, str], ...] = setting(
        (), kinds.table("name=model", parse.plain),
        "your own names for models, or other models for Ollama's names",
        example="mine=hf.co/org/repo:Q4_K_M",
    )  # fmt: skip
    models_dir: Path = setting(
        None, kinds.FOLDER, "Ollama's own store of models, read in place and pulled into",
        example="~/.ollama/models", factory=default_models_dir, foreign="OLLAMA_MODELS",
    )  # fmt: skip
    ollama_registry: str | None = setting(
        None, kinds.URL, "Ollama registry to look up library names in, instead of the hub",
        example="https://registry.example",
    )  # fmt: skip
    lmstudio_dir: Path | None = setting(
        None, kinds.FOLDER, "LM Studio's folder of models, read in place",
        example="~/.lmstudio/models",
    )  # fmt: skip
    hf_cache_dir: Path = setting(
        None, kinds.FOLDER, "cache of the Hugging Face hub",
        example="~/.cache/huggingface/hub", factory=lambda: default_hf_home() / "hub",
        foreign="HF_HUB_CACHE",
    )  # fmt: skip
    hf_endpoint: str | None = setting(
        None, kinds.URL, "hub to use instead of https://huggingface.co",
        example="https://hub.example", foreign="HF_ENDPOINT",
    )  # fmt: skip
    hf_token: str | None = setting(
        None, kinds.text("TOKEN"), "token for gated and private models",
        example="hf_xxxx", foreign="HF_TOKEN", secret=True,
    )  # fmt: skip
    hf_offline: bool = setting(
        False, kinds.SWITCH, "never ask the hub",
        example="true", foreign="HF_HUB_OFFLINE",
    )  # fmt: skip
    download_connections: int = setting(
        4, kinds.number(1, 64), "connections of one download",
        example="4", foreign="OLLAMA_MAX_TRANSFER_STREAMS", remote=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """The part of `Config` that says where to write, and how much."""

    data_dir: Path = setting(
        None, kinds.FOLDER, "folder for everything that vllama writes",
        example="~/.local/share/vllama", factory=default_data_dir, effect=Effect.RESTART,
    )  # fmt: skip
    log_dir: Path = setting(
        None, kinds.FOLDER, "logs of the engines and of vllama",
        example="~/.local/share/vllama/logs", factory=lambda: default_data_dir() / "logs",
        effect=Effect.RESTART,
    )  # fmt: skip
    run_dir: Path = setting(
        None, kinds.FOLDER, "records of running engines",
        example="~/.local/share/vllama/run", factory=lambda: default_data_dir() / "run",
        effect=Effect.RESTART,
    )  # fmt: skip
    nohistory: bool = setting(
        False, kinds.SWITCH, "keep no history of the prompts that you type",
        example="true", foreign="OLLAMA_NOHISTORY", effect=Effect.COMMANDS,
    )  # fmt: skip
    debug: bool = setting(
        False, kinds.SWITCH, "log details",
        example="true", flag="--debug", foreign="OLLAMA_DEBUG", remote=True,
    )  # fmt: skip
    debug_log_requests: bool = setting(
        False, kinds.SWITCH,
        "keep the body of every request to a model in a file, with a command that repeats it",
        example="true", foreign="OLLAMA_DEBUG_LOG_REQUESTS", effect=Effect.RESTART,
    )  # fmt: skip
    capture: int | Path = setting(
        0, kinds.CAPTURES,
        "keep the last N requests to models with their answers, or as many as 1 GiB holds in the "
        "folder DIR; see 'vllama requests' and 'vllama replay'",
        example="100", flag="--capture", effect=Effect.RESTART,
    )  # fmt: skip
    batch_files_bytes: int = setting(
        4 * 1000**3, kinds.SIZE, "disk space for the files of batches",
        example="4GB", effect=Effect.RESTART,
    )  # fmt: skip
    batch_files_per_key_bytes: int = setting(
        1000**3, kinds.SIZE, "disk space for the files of batches of one key",
        example="1GB", effect=Effect.RESTART,
    )  # fmt: skip
    log_format: str = setting(
        "text", kinds.choice("text", "json"), "format of the log",
        example="json", flag="--log-format", effect=Effect.RESTART,
    )  # fmt: skip
    otlp_endpoint: str | None = setting(
        None, kinds.HTTP_URL,
        "OpenTelemetry collector to send a trace of each request to, over HTTP (needs the extra "
        "otel); the other OTEL_ variables apply too",
        example="http://127.0.0.1:4318", flag="--otlp-endpoint",
        foreign="OTEL_EXPORTER_OTLP_ENDPOINT", effect=Effect.RESTART,
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
        """Where a client on this machine finds the server."""
        return address.url(self.scheme, address.reachable_host(self.host), self.port)

    @property
    def key_to_send(self) -> str | None:
        """The key that the command line shows to the server, None: it has none."""
        return self.api_key[0] if self.api_key else self.client_key

    @property
    def cluster_dir(self) -> Path:
        """The folder with what belongs to a Ray cluster: its token, and the key of its nodes."""
        return self.data_dir / "cluster"

    @property
    def is_head(self) -> bool:
        """Whether it offers the models of other servers of a cluster."""
        return bool(self.nodes or self.cluster)

    @property
    def stop_limit_s(self) -> float:
        """The longest that a stop waits for clients, before it ends the engines."""
        return self.shutdown_delay_s + self.drain_timeout_s

    @property
    def wants_keys(self) -> bool:
        """Whether a server needs keys that starts with these settings."""
        from vllama.accounts.keys.store import wants_keys  # most commands need no file of keys

        return bool(self.api_key) or self.require_keys or wants_keys(keys_file(self.data_dir))

    @property
    def exposure(self) -> str | None:
        """The warning for a server that others can reach and that wants no key."""
        if address.is_loopback(self.host) or self.wants_keys:
            return None
        scheme = "https" if self.tls_cert else "http"
        return address.warn_of_exposure(scheme, self.host, self.port, read_only=self.read_only)


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(field=each.name, **each.metadata) for each in fields(Config) if each.metadata
)
BY_FIELD: Mapping[str, Setting] = {each.field: each for each in SETTINGS}
_NAMES = ("Output", "Models and sources", "Engines", "Server")
GROUPS: Mapping[str, str] = {
    each.name: name
    for name, group in zip(_NAMES, Config.__bases__, strict=True)
    for each in fields(group)
}
"""The group that a field is shown in."""
