"""The one table of settings: field ↔ flag ↔ `VLLAMA_*` ↔ `OLLAMA_*` ↔ TOML key ↔ parser ↔ help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from vllama.config import parse
from vllama.config.settings import SECRETS, default
from vllama.units import parse_bytes

ENV_PREFIX = "VLLAMA_"
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "fp8")


class Setting(Struct, frozen=True):
    """One row: a field of `Config`, its parser, help, an example, and its names elsewhere.

    `foreign` is the variable of Ollama (or of the Hugging Face hub) that means the same.
    A row with `many` takes a list in the config file, one with `table` a table of its own.
    """

    field: str
    parse: Callable[[Any], object]
    help: str
    example: str
    flag: str | None = None
    foreign: str | None = None
    many: bool = False
    table: bool = False

    @property
    def key(self) -> str:
        """Name in the config file."""
        return self.field.removesuffix("_s").removesuffix("_bytes")

    @property
    def secret(self) -> bool:
        """True for what is never shown."""
        return self.field in SECRETS

    @property
    def is_switch(self) -> bool:
        """True if the flag takes no value."""
        return isinstance(default(self.field), bool)

    @property
    def env(self) -> str:
        """Name of our own variable."""
        return ENV_PREFIX + self.key.upper()


SETTINGS: tuple[Setting, ...] = (
    Setting("host", parse.host, "address to listen on", "0.0.0.0:11434", "--host", "OLLAMA_HOST"),
    Setting("port", parse.port, "port to listen on; 0 takes any free one", "11434", "--port"),
    Setting("model", parse.model, "model to load at the start", "Qwen/Qwen3-0.6B", "--model"),
    Setting(
        "engine",
        parse.auto(parse.plain),
        "engine to use; auto takes the best for this machine",
        "auto",
        "--engine",
    ),
    Setting(
        "strict",
        parse.boolean,
        "fail if an engine does not start, instead of trying another plan",
        "true",
        "--strict",
    ),
    Setting(
        "context_length",
        parse.auto(parse.context, "0"),
        "context in tokens; 0 as the model and the memory allow",
        "8192",
        "--ctx",
        "OLLAMA_CONTEXT_LENGTH",
    ),
    Setting(
        "gpu_layers",
        parse.auto(parse.layers),
        "layers to put on the GPU; all, or 0 for none",
        "all",
        "--gpu-layers",
    ),
    Setting(
        "threads", parse.auto(parse.whole(1), "0"), "CPU threads of an engine", "8", "--threads"
    ),
    Setting(
        "keep_alive_s",
        parse.duration,
        "how long an idle model stays loaded; negative for ever",
        "5m",
        "--keep-alive",
        "OLLAMA_KEEP_ALIVE",
    ),
    Setting(
        "load_timeout_s",
        parse.timeout,
        "how long a load may make no progress; 0 for ever",
        "5m",
        "--load-timeout",
        "OLLAMA_LOAD_TIMEOUT",
    ),
    Setting(
        "drain_timeout_s",
        parse.duration,
        "how long running answers may take when the server stops",
        "10s",
    ),
    Setting(
        "num_parallel",
        parse.whole(0),
        "requests at once per model; 0 as the engine likes (llama-server: 1, 4 if several come)",
        "4",
        "--parallel",
        "OLLAMA_NUM_PARALLEL",
    ),
    Setting(
        "max_loaded_models",
        parse.whole(0),
        "models loaded at once; 0 as memory allows",
        "3",
        "--max-loaded-models",
        "OLLAMA_MAX_LOADED_MODELS",
    ),
    Setting(
        "max_queue",
        parse.whole(0),
        "requests that may wait for a model; more are refused",
        "512",
        "--max-queue",
        "OLLAMA_MAX_QUEUE",
    ),
    Setting(
        "replicas",
        parse.whole(1, 64),
        "processes of each model, between which its requests are shared",
        "2",
        "--replicas",
    ),
    Setting(
        "hang_timeout_s",
        parse.timeout,
        "how long an engine may be silent in an answer before it is restarted; 0 for ever",
        "30s",
        "--hang-timeout",
    ),
    Setting(
        "upstreams",
        parse.each(parse.plain, parse.by_comma),
        "running OpenAI servers to put this API in front of",
        "http://127.0.0.1:8000",
        "--upstream",
        many=True,
    ),
    Setting("upstream_key", parse.plain, "key that the upstreams want", "sk-…", "--upstream-key"),
    Setting(
        "origins",
        parse.each(parse.plain, parse.by_comma),
        "further origins that browsers may call from",
        "https://chat.example",
        foreign="OLLAMA_ORIGINS",
        many=True,
    ),
    Setting(
        "api_key",
        parse.each(parse.key, parse.by_comma),
        "keys, one of which every request but / and those for health must show",
        "sk-1234",
        "--api-key",
        many=True,
    ),
    Setting(
        "api_key_file",
        parse.path,
        "file with more such keys, one a line; SIGHUP reads it again",
        "/etc/vllama/keys",
        "--api-key-file",
    ),
    Setting(
        "client_key",
        parse.key,
        "key that the commands show to the server; the first api_key where there is one",
        "sk-1234",
        foreign="OLLAMA_API_KEY",
    ),
    Setting(
        "tls_cert",
        parse.path,
        "certificate to serve https with, and its chain (PEM); SIGHUP reads it again",
        "/etc/vllama/cert.pem",
        "--tls-cert",
    ),
    Setting(
        "tls_key",
        parse.path,
        "private key of the certificate (PEM), if it is not in the same file",
        "/etc/vllama/key.pem",
        "--tls-key",
    ),
    Setting(
        "read_only",
        parse.boolean,
        "refuse to pull, push, create, copy, delete and upload models over HTTP",
        "true",
        "--read-only",
    ),
    Setting(
        "allow_registry",
        parse.each(parse.registry, parse.by_comma),
        "hosts that models may be pulled from, and no others (the hub: huggingface.co, "
        "Ollama's registry: registry.ollama.ai)",
        "huggingface.co",
        "--allow-registry",
        many=True,
    ),
    Setting(
        "max_blob_size_bytes",
        parse.auto(parse_bytes, "0"),
        "size of the largest file that may be uploaded or pulled; 0 for any",
        "20GB",
        "--max-blob-size",
    ),
    Setting(
        "flash_attention",
        parse.auto(parse.boolean),
        "flash attention; auto where it works",
        "auto",
        foreign="OLLAMA_FLASH_ATTENTION",
    ),
    Setting(
        "kv_cache_type",
        parse.auto(parse.choice(*KV_TYPES)),
        "number format of the KV cache",
        "q8_0",
        foreign="OLLAMA_KV_CACHE_TYPE",
    ),
    Setting(
        "gpu_overhead_bytes",
        parse_bytes,
        "memory to leave free on each GPU",
        "1GiB",
        foreign="OLLAMA_GPU_OVERHEAD",
    ),
    Setting(
        "engine_paths",
        parse.pairs("engine=path", parse.path),
        "where engines are: an environment's folder, or a program",
        "llama-server=/opt/llama/llama-server",
        table=True,
    ),
    Setting(
        "engine_args",
        parse.each(str, parse.by_shell),
        "further arguments for the engine, as after --",
        "--seed 1",
        many=True,
    ),
    Setting(
        "folders",
        parse.each(parse.path, parse.by_pathsep),
        "folders with model files of your own",
        "~/models",
        many=True,
    ),
    Setting(
        "aliases",
        parse.pairs("name=model", parse.plain),
        "names of your own for models of the hub, or other models for Ollama's names",
        "mine=hf.co/org/repo:Q4_K_M",
        table=True,
    ),
    Setting(
        "models_dir",
        parse.path,
        "Ollama's own store of models, read in place and pulled into",
        "~/.ollama/models",
        foreign="OLLAMA_MODELS",
    ),
    Setting(
        "ollama_registry",
        parse.plain,
        "registry of Ollama's kind to take library names from, instead of the hub",
        "https://registry.example",
    ),
    Setting(
        "lmstudio_dir",
        parse.path,
        "LM Studio's folder of models, read in place",
        "~/.lmstudio/models",
    ),
    Setting(
        "hf_cache_dir",
        parse.path,
        "cache of the Hugging Face hub",
        "~/.cache/huggingface/hub",
        foreign="HF_HUB_CACHE",
    ),
    Setting(
        "hf_endpoint",
        parse.plain,
        "hub to use instead of https://huggingface.co",
        "https://hub.example",
        foreign="HF_ENDPOINT",
    ),
    Setting(
        "hf_token",
        parse.plain,
        "token for gated and private models",
        "hf_xxxx",
        foreign="HF_TOKEN",
    ),
    Setting("hf_offline", parse.boolean, "never ask the hub", "true", foreign="HF_HUB_OFFLINE"),
    Setting("download_connections", parse.whole(1, 64), "connections of one download", "4"),
    Setting("data_dir", parse.path, "where vllama keeps what it writes", "~/.local/share/vllama"),
    Setting(
        "log_dir", parse.path, "logs of the engines and of vllama", "~/.local/share/vllama/logs"
    ),
    Setting("run_dir", parse.path, "records of running engines", "~/.local/share/vllama/run"),
    Setting(
        "nohistory",
        parse.boolean,
        "keep no history of what is typed",
        "true",
        foreign="OLLAMA_NOHISTORY",
    ),
    Setting("debug", parse.boolean, "log more", "true", "--debug", "OLLAMA_DEBUG"),
    Setting("log_format", parse.choice("text", "json"), "form of the log", "json", "--log-format"),
)
