"""All settings, each declared once: type, default, kind of value, help, flag and variables.

From a field of `Config` follow the flag of `serve`, the variables `VLLAMA_*` and Ollama's, the key
of the config file, its JSON schema, and the reference page.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from vllama.config import address, kinds, parse, tables
from vllama.config.folders import default_hf_home, default_models_dir, keys_file
from vllama.config.output_settings import OutputSettings
from vllama.config.setting import Setting, setting
from vllama.models.model_settings import ModelSettings
from vllama.models.settings import UpstreamSettings, UpstreamTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(OutputSettings):
    """The settings of one run: an immutable snapshot. None means: decide by what is there.

    `port` 0 takes any free port. `context_length` is in tokens, `gpu_layers` -1 means all.
    `keep_alive_s` may be `math.inf`; `load_timeout_s` and `hang_timeout_s` None wait for ever.
    `num_parallel` and `max_loaded_models` 0 leave it to engine and memory. `api_key` has those of
    `api_key_file` too. `allow_registry` () allows all, `max_blob_size_bytes` None any size.

    The last fields are not settings: `scheme` follows from the address and the certificate, `notes`
    are warnings for the user, and `sources` says of each setting that was given where it came from.
    """

    host: str = setting(
        "127.0.0.1",
        kinds.text("ADDRESS", parse.host),
        "address to listen on",
        example="0.0.0.0:11434",
        flag="--host",
        foreign="OLLAMA_HOST",
        needs_restart=True,
    )
    port: int = setting(
        11434,
        kinds.number(0, 65535),
        "port to listen on; 0 takes any free one",
        example="11434",
        flag="--port",
        needs_restart=True,
    )
    model: str | None = setting(
        None,
        kinds.text("NAME", parse.model),
        "model to load at the start",
        example="Qwen/Qwen3-0.6B",
        flag="--model",
        short="-m",
        needs_restart=True,
    )
    watch: bool = setting(
        False,
        kinds.SWITCH,
        "take over changes of the config file, and of the files that it names, without a signal",
        example="true",
        flag="--watch",
        needs_restart=True,
    )
    engine: str | None = setting(
        None,
        kinds.auto(kinds.NAME),
        "engine to use; auto takes the best for this machine",
        example="auto",
        flag="--engine",
    )
    strict: bool = setting(
        False,
        kinds.SWITCH,
        "fail if an engine does not start, instead of trying another plan",
        example="true",
        flag="--strict",
    )
    context_length: int | None = setting(
        None,
        kinds.auto(kinds.CONTEXT, "0"),
        "context in tokens; 0 as the model and the memory allow",
        example="8192",
        flag="--ctx",
        foreign="OLLAMA_CONTEXT_LENGTH",
    )
    max_tokens: int | None = setting(
        None,
        kinds.auto(kinds.number(1), "0"),
        "most tokens of any answer, whatever a request asks for; 0 for as many as it asks for",
        example="4096",
        flag="--max-tokens",
        needs_restart=True,
    )
    gpu_layers: int | None = setting(
        None,
        kinds.auto(kinds.LAYERS),
        "layers to put on the GPU; all, or 0 for none",
        example="all",
        flag="--gpu-layers",
    )
    threads: int | None = setting(
        None,
        kinds.auto(kinds.number(1), "0"),
        "CPU threads of an engine",
        example="8",
        flag="--threads",
    )
    keep_alive_s: float = setting(
        300.0,
        kinds.DURATION,
        "how long an idle model stays loaded; negative for ever",
        example="5m",
        flag="--keep-alive",
        foreign="OLLAMA_KEEP_ALIVE",
    )
    load_timeout_s: float | None = setting(
        300.0,
        kinds.TIMEOUT,
        "how long a load may make no progress; 0 for ever",
        example="5m",
        flag="--load-timeout",
        foreign="OLLAMA_LOAD_TIMEOUT",
    )
    drain_timeout_s: float = setting(
        10.0,
        kinds.DURATION,
        "how long running answers may take when the server stops",
        example="10s",
        needs_restart=True,
    )
    shutdown_delay_s: float = setting(
        0.0,
        kinds.DURATION,
        "how long a server that is told to stop still accepts requests while /readyz says no, for "
        "load balancers that have to notice",
        example="10s",
        needs_restart=True,
    )
    num_parallel: int = setting(
        0,
        kinds.number(0),
        "requests at once per model; 0 as the engine likes (llama-server: 1, 4 if several come)",
        example="4",
        flag="--parallel",
        foreign="OLLAMA_NUM_PARALLEL",
    )
    max_loaded_models: int = setting(
        0,
        kinds.number(0),
        "models loaded at once; 0 as memory allows",
        example="3",
        flag="--max-loaded-models",
        foreign="OLLAMA_MAX_LOADED_MODELS",
    )
    max_queue: int = setting(
        512,
        kinds.number(0),
        "requests that may wait for a model; more are refused",
        example="512",
        flag="--max-queue",
        foreign="OLLAMA_MAX_QUEUE",
    )
    replicas: int = setting(
        1,
        kinds.number(1, 64),
        "processes of each model, between which its requests are shared",
        example="2",
        flag="--replicas",
        needs_restart=True,
    )
    hang_timeout_s: float | None = setting(
        30.0,
        kinds.TIMEOUT,
        "how long an engine may be silent in an answer before it is restarted; 0 for ever",
        example="30s",
        flag="--hang-timeout",
    )
    origins: tuple[str, ...] = setting(
        (),
        kinds.many(kinds.URL),
        "further origins that browsers may call from",
        example="https://chat.example",
        foreign="OLLAMA_ORIGINS",
    )
    api_key: tuple[str, ...] = setting(
        (),
        kinds.many(kinds.KEY),
        "keys, one of which every request but / and those for health must show; others on this "
        "machine can see flags, but not api_key_file",
        example="sk-1234",
        flag="--api-key",
        secret=True,
    )
    api_key_file: Path | None = setting(
        None,
        kinds.FILE,
        "file with more such keys, one a line; SIGHUP reads it again",
        example="/etc/vllama/keys",
        flag="--api-key-file",
    )
    client_key: str | None = setting(
        None,
        kinds.KEY,
        "key that the commands show to the server; the first api_key where there is one",
        example="sk-1234",
        foreign="OLLAMA_API_KEY",
        secret=True,
    )
    tls_cert: Path | None = setting(
        None,
        kinds.FILE,
        "certificate to serve https with, and its chain (PEM); SIGHUP reads it again",
        example="/etc/vllama/cert.pem",
        flag="--tls-cert",
        needs_restart=True,
    )
    tls_key: Path | None = setting(
        None,
        kinds.FILE,
        "private key of the certificate (PEM), if it is not in the same file",
        example="/etc/vllama/key.pem",
        flag="--tls-key",
        needs_restart=True,
    )
    read_only: bool = setting(
        False,
        kinds.SWITCH,
        "refuse to pull, push, create, copy, delete and upload models over HTTP",
        example="true",
        flag="--read-only",
    )
    no_ui: bool = setting(
        False,
        kinds.SWITCH,
        "serve no page to browsers under /ui/",
        example="true",
        flag="--no-ui",
    )
    allow_registry: tuple[str, ...] = setting(
        (),
        kinds.many(kinds.text("HOST", parse.registry)),
        "hosts that models may be pulled from, and no others (the hub: huggingface.co, "
        "Ollama's registry: registry.ollama.ai)",
        example="huggingface.co",
        flag="--allow-registry",
    )
    max_blob_size_bytes: int | None = setting(
        None,
        kinds.auto(kinds.SIZE, "0"),
        "size of the largest file that may be uploaded or pulled; 0 for any",
        example="20GB",
        flag="--max-blob-size",
    )
    go_template: bool = setting(
        True,
        kinds.SWITCH,
        "use a Modelfile's Go template; false prefers the Jinja template of the model's own file",
        example="true",
        foreign="OLLAMA_GO_TEMPLATE",
        needs_restart=True,
    )
    searxng: str | None = setting(
        None,
        kinds.HTTP_URL,
        "SearXNG that /api/web_search asks; with it clients may also fetch public pages",
        example="http://127.0.0.1:8888",
        flag="--searxng",
        needs_restart=True,
    )
    otlp_endpoint: str | None = setting(
        None,
        kinds.HTTP_URL,
        "OpenTelemetry collector to send a trace of each request to, over HTTP (needs the extra "
        "otel); the other OTEL_ variables hold too",
        example="http://127.0.0.1:4318",
        flag="--otlp-endpoint",
        foreign="OTEL_EXPORTER_OTLP_ENDPOINT",
        needs_restart=True,
    )
    upstreams: tuple[UpstreamSettings, ...] = setting(
        (),
        tables.UPSTREAMS,
        "running OpenAI servers to put this API in front of: URLs, or tables [upstreams.NAME]",
        example="http://127.0.0.1:8000",
        flag="--upstream",
    )
    models: tuple[tuple[str, ModelSettings], ...] = setting(
        (),
        tables.MODELS,
        'settings of single models, or of all that a pattern matches: tables [models."NAME"]',
        example='{ "qwen3:*" = { context = 8192 } }',
    )
    upstream_key: str | None = setting(
        None,
        kinds.text("KEY"),
        "key that the upstreams want",
        example="sk-…",
        flag="--upstream-key",
        secret=True,
    )
    upstream_traits: tuple[tuple[str, UpstreamTraits], ...] = setting(
        (),
        kinds.UPSTREAM_TRAITS,
        "what an upstream, or one of its models, is like where it does not tell: tool_calls "
        "(parsed, text, none), thinking (parsed, tags, none), context, embeddings, images",
        example="http://127.0.0.1:8000=tool_calls=text thinking=tags",
    )
    flash_attention: bool | None = setting(
        None,
        kinds.auto(kinds.SWITCH),
        "flash attention; auto where it works",
        example="auto",
        foreign="OLLAMA_FLASH_ATTENTION",
    )
    kv_cache_type: str | None = setting(
        None,
        kinds.auto(kinds.choice(*kinds.KV_CACHE_TYPES)),
        "number format of the KV cache",
        example="q8_0",
        foreign="OLLAMA_KV_CACHE_TYPE",
    )
    gpu_overhead_bytes: int = setting(
        0,
        kinds.SIZE,
        "memory to leave free on each GPU",
        example="1GiB",
        foreign="OLLAMA_GPU_OVERHEAD",
        needs_restart=True,
    )
    engine_paths: tuple[tuple[str, Path], ...] = setting(
        (),
        kinds.table("engine=path", parse.path),
        "where engines are: an environment's folder, or a program",
        example="llama-server=/opt/llama/llama-server",
        needs_restart=True,
    )
    engine_args: tuple[str, ...] = setting(
        (),
        kinds.many(kinds.text("ARGUMENT", str), parse.by_shell, shlex.join),
        "further arguments for the engine, as after --",
        example="--seed 1",
    )
    folders: tuple[Path, ...] = setting(
        (),
        kinds.many(kinds.FOLDER, parse.by_pathsep, os.pathsep.join),
        "folders with model files of your own",
        example="~/models",
    )
    aliases: tuple[tuple[str, str], ...] = setting(
        (),
        kinds.table("name=model", parse.plain),
        "names of your own for models of the hub, or other models for Ollama's names",
        example="mine=hf.co/org/repo:Q4_K_M",
    )
    models_dir: Path = setting(
        None,
        kinds.FOLDER,
        "Ollama's own store of models, read in place and pulled into",
        example="~/.ollama/models",
        factory=default_models_dir,
        foreign="OLLAMA_MODELS",
    )
    ollama_registry: str | None = setting(
        None,
        kinds.URL,
        "registry of Ollama's kind to take library names from, instead of the hub",
        example="https://registry.example",
    )
    lmstudio_dir: Path | None = setting(
        None,
        kinds.FOLDER,
        "LM Studio's folder of models, read in place",
        example="~/.lmstudio/models",
    )
    hf_cache_dir: Path = setting(
        None,
        kinds.FOLDER,
        "cache of the Hugging Face hub",
        example="~/.cache/huggingface/hub",
        factory=lambda: default_hf_home() / "hub",
        foreign="HF_HUB_CACHE",
    )
    hf_endpoint: str | None = setting(
        None,
        kinds.URL,
        "hub to use instead of https://huggingface.co",
        example="https://hub.example",
        foreign="HF_ENDPOINT",
    )
    hf_token: str | None = setting(
        None,
        kinds.text("TOKEN"),
        "token for gated and private models",
        example="hf_xxxx",
        foreign="HF_TOKEN",
        secret=True,
    )
    hf_offline: bool = setting(
        False,
        kinds.SWITCH,
        "never ask the hub",
        example="true",
        foreign="HF_HUB_OFFLINE",
    )
    download_connections: int = setting(
        4,
        kinds.number(1, 64),
        "connections of one download",
        example="4",
        foreign="OLLAMA_MAX_TRANSFER_STREAMS",
    )
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
    def stop_limit_s(self) -> float:
        """The longest that a stop waits for clients, before it ends the engines."""
        return self.shutdown_delay_s + self.drain_timeout_s

    @property
    def exposure(self) -> str | None:
        """The warning for a server that others can reach and that wants no key."""
        if self.api_key or keys_file(self.data_dir).exists() or address.is_loopback(self.host):
            return None
        scheme = "https" if self.tls_cert else "http"
        return address.warn_of_exposure(scheme, self.host, self.port, read_only=self.read_only)


_inherited = {each.name for each in fields(OutputSettings)}
SETTINGS: tuple[Setting, ...] = tuple(
    Setting(field=each.name, **each.metadata)
    for each in sorted(fields(Config), key=lambda each: each.name in _inherited)
    if each.metadata
)
BY_FIELD: Mapping[str, Setting] = {each.field: each for each in SETTINGS}
