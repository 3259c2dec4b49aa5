"""The settings of engines: which one runs a model, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vllama.base import kinds
from vllama.base.setting import Effect, setting
from vllama.config.parse import Layers, ModelArgument, Models
from vllama.models.table_kinds import Arguments, Replicas

EnginePaths = Annotated[tuple[tuple[str, Path], ...], kinds.table("engine=path", kinds.Folder)]
LOAD, RESTART = Effect.NEXT_LOAD, Effect.RESTART


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The part of `Config` that says how models are run.

    `context_length` is in tokens, `gpu_layers` -1 means all. `keep_alive_s` may be `math.inf`;
    a timeout None means no limit. `num_parallel` and `max_loaded_models` None leave it to engine
    and memory.
    """

    model: ModelArgument | None = setting(
        "model to load at startup", example="Qwen/Qwen3-0.6B", flag=True, short="-m", effect=RESTART
    )
    engine: kinds.Auto[kinds.Name] = setting(
        "engine to use; auto: the best one for this machine", flag=True, effect=LOAD, remote=True
    )
    strict: bool = setting(
        "fail if an engine does not start, instead of trying another plan", False, flag=True,
        effect=LOAD, remote=True,
    )  # fmt: skip
    context_length: kinds.AutoOrZero[kinds.Context] = setting(
        "context length in tokens; 0: as much as the model and the memory allow", example="8192",
        flag=True, foreign="OLLAMA_CONTEXT_LENGTH", effect=LOAD, remote=True,
    )  # fmt: skip
    max_tokens: kinds.AutoOrZero[kinds.Count] = setting(
        "upper limit for max_tokens of any request; 0: no limit", example="4096", flag=True,
        remote=True,
    )  # fmt: skip
    gpu_layers: kinds.Auto[Layers] = setting(
        "layers on the GPU: all, or a number; 0: none", example="all", flag=True, effect=LOAD,
        remote=True,
    )  # fmt: skip
    threads: kinds.AutoOrZero[kinds.Count] = setting(
        "CPU threads per engine", example="8", flag=True, effect=LOAD, remote=True
    )
    keep_alive_s: kinds.Duration = setting(
        "time to keep an idle model loaded; negative: forever", 300.0, flag=True,
        foreign="OLLAMA_KEEP_ALIVE", remote=True,
    )  # fmt: skip
    load_timeout_s: kinds.Timeout = setting(
        "time limit for a load without progress; 0: no limit", 300.0, flag=True,
        foreign="OLLAMA_LOAD_TIMEOUT", effect=LOAD, remote=True,
    )  # fmt: skip
    num_parallel: kinds.AutoOrZero[kinds.Count] = setting(
        "parallel requests per model; auto: by engine (llama-server: 1, 4 under load)", example="4",
        flag=True, foreign="OLLAMA_NUM_PARALLEL", effect=LOAD, remote=True,
    )  # fmt: skip
    max_loaded_models: kinds.AutoOrZero[kinds.Count] = setting(
        "maximum number of loaded models; auto: as memory allows", example="3", flag=True,
        foreign="OLLAMA_MAX_LOADED_MODELS", remote=True,
    )  # fmt: skip
    max_queue: Annotated[int, kinds.number(0)] = setting(
        "maximum number of queued requests per model; others are rejected", 512, flag=True,
        foreign="OLLAMA_MAX_QUEUE", remote=True,
    )  # fmt: skip
    replicas: Replicas = setting(
        "processes per model that share its requests", 1, example="2", flag=True, effect=RESTART
    )
    hang_timeout_s: kinds.Timeout = setting(
        "silence during a response after which an engine is restarted; 0: never", 30.0, flag=True,
        remote=True,
    )  # fmt: skip
    first_token_timeout_s: kinds.Timeout = setting(
        "time limit for the first token, per 8192 tokens of context; 0: no limit", 600.0,
        flag=True, remote=True,
    )  # fmt: skip
    early_head_s: kinds.Timeout = setting(
        "interval of keep-alive signals in a stream without tokens; 0: never", 10.0, flag=True,
        remote=True,
    )  # fmt: skip
    cache_disk_bytes: kinds.Size = setting(
        "disk space for conversations of unloaded models; 0: none", 0, example="20GB", flag=True,
        effect=RESTART,
    )  # fmt: skip
    resume: Annotated[int, kinds.number(0, 10)] = setting(
        "times to resume a response after engine crashes; 0: never", 2, flag=True, remote=True
    )
    models: Models = setting(
        'settings of models, by name or pattern: tables [models."NAME"]', (),
        example='{ "qwen3:*" = { context_length = 8192 } }',
    )  # fmt: skip
    go_template: bool = setting(
        "use a Modelfile's Go template; false: prefer the Jinja template of the model file", True,
        foreign="OLLAMA_GO_TEMPLATE", effect=RESTART,
    )  # fmt: skip
    flash_attention: kinds.Auto[bool] = setting(
        "flash attention; auto: if it works", foreign="OLLAMA_FLASH_ATTENTION", effect=LOAD,
        remote=True,
    )  # fmt: skip
    kv_cache_type: kinds.Auto[kinds.KvCacheType] = setting(
        "number format of the KV cache; fit: q8_0 if f16 does not fit on the GPU",
        example="q8_0", foreign="OLLAMA_KV_CACHE_TYPE", effect=LOAD, remote=True,
    )  # fmt: skip
    inspect: bool = setting(
        "let requests collect activations and steer responses; slower", False, flag=True,
        effect=LOAD, remote=True,
    )  # fmt: skip
    inspect_limit_bytes: kinds.Size = setting(
        "maximum bytes that a request may collect", 64 * 1024 * 1024, remote=True
    )
    gpu_overhead_bytes: kinds.Size = setting(
        "memory to keep free on each GPU", 0, example="1GiB", foreign="OLLAMA_GPU_OVERHEAD",
        effect=RESTART,
    )  # fmt: skip
    engine_paths: EnginePaths = setting(
        "paths of engines: an environment's folder, or a program", (),
        example="llama-server=/opt/llama/llama-server", effect=RESTART,
    )  # fmt: skip
    engine_args: Arguments = setting(
        "additional arguments for the engine, like those after --", (), example="--seed 1",
        effect=LOAD,
    )  # fmt: skip
