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
        "model to load at the start", example="Qwen/Qwen3-0.6B", flag=True, short="-m",
        effect=RESTART,
    )  # fmt: skip
    engine: kinds.Auto[kinds.Name] = setting(
        "engine to use; auto takes the best for this machine", flag=True, effect=LOAD, remote=True
    )
    strict: bool = setting(
        "fail if an engine does not start, instead of trying another plan", False, flag=True,
        effect=LOAD, remote=True,
    )  # fmt: skip
    context_length: kinds.AutoOrZero[kinds.Context] = setting(
        "context in tokens; 0: as much as the model and the memory allow", example="8192",
        flag=True, foreign="OLLAMA_CONTEXT_LENGTH", effect=LOAD, remote=True,
    )  # fmt: skip
    max_tokens: kinds.AutoOrZero[kinds.Count] = setting(
        "most tokens of any answer, whatever a request asks for; 0: no limit", example="4096",
        flag=True, remote=True,
    )  # fmt: skip
    gpu_layers: kinds.Auto[Layers] = setting(
        "layers to put on the GPU: all, or a number; 0: none", example="all", flag=True,
        effect=LOAD, remote=True,
    )  # fmt: skip
    threads: kinds.AutoOrZero[kinds.Count] = setting(
        "CPU threads for an engine", example="8", flag=True, effect=LOAD, remote=True
    )
    keep_alive_s: kinds.Duration = setting(
        "how long an idle model stays loaded; negative: forever", 300.0, flag=True,
        foreign="OLLAMA_KEEP_ALIVE", remote=True,
    )  # fmt: skip
    load_timeout_s: kinds.Timeout = setting(
        "how long a load may go without progress; 0: no limit", 300.0, flag=True,
        foreign="OLLAMA_LOAD_TIMEOUT", effect=LOAD, remote=True,
    )  # fmt: skip
    num_parallel: kinds.AutoOrZero[kinds.Count] = setting(
        "concurrent requests per model; auto: by engine (llama-server: 1, or 4 if several come)",
        example="4", flag=True, foreign="OLLAMA_NUM_PARALLEL", effect=LOAD, remote=True,
    )  # fmt: skip
    max_loaded_models: kinds.AutoOrZero[kinds.Count] = setting(
        "models loaded at once; auto: as memory allows", example="3", flag=True,
        foreign="OLLAMA_MAX_LOADED_MODELS", remote=True,
    )  # fmt: skip
    max_queue: Annotated[int, kinds.number(0)] = setting(
        "requests that may wait for a model; others are refused", 512, flag=True,
        foreign="OLLAMA_MAX_QUEUE", remote=True,
    )  # fmt: skip
    replicas: Replicas = setting(
        "processes of each model, which share its requests", 1, example="2", flag=True,
        effect=RESTART,
    )  # fmt: skip
    hang_timeout_s: kinds.Timeout = setting(
        "how long an engine may be silent during an answer before it is restarted; 0: never", 30.0,
        flag=True, remote=True,
    )  # fmt: skip
    first_token_timeout_s: kinds.Timeout = setting(
        "how long an engine may give nobody a token while a request waits for its first, for each "
        "8192 tokens of context; 0: no limit", 600.0, flag=True, remote=True,
    )  # fmt: skip
    early_head_s: kinds.Timeout = setting(
        "how long a stream may wait for a token before the client gets a sign of life, with the "
        "head, and again as often; 0: never", 10.0, flag=True, remote=True,
    )  # fmt: skip
    cache_disk_bytes: kinds.Size = setting(
        "disk space to keep conversations of models that are unloaded or killed; 0: none are kept",
        0, example="20GB", flag=True, effect=RESTART,
    )  # fmt: skip
    resume: Annotated[int, kinds.number(0, 10)] = setting(
        "how many times an answer is resumed after its engine dies; 0: it ends with an error", 2,
        flag=True, remote=True,
    )  # fmt: skip
    models: Models = setting(
        'settings of single models, or of all that a pattern matches: tables [models."NAME"]', (),
        example='{ "qwen3:*" = { context_length = 8192 } }',
    )  # fmt: skip
    go_template: bool = setting(
        "use a Modelfile's Go template; false prefers the Jinja template of the model's own file",
        True, foreign="OLLAMA_GO_TEMPLATE", effect=RESTART,
    )  # fmt: skip
    flash_attention: kinds.Auto[bool] = setting(
        "flash attention; auto: where it works", foreign="OLLAMA_FLASH_ATTENTION", effect=LOAD,
        remote=True,
    )  # fmt: skip
    kv_cache_type: kinds.Auto[kinds.KvCacheType] = setting(
        "number format of the KV cache; fit: q8_0 where f16 does not fit on the GPU",
        example="q8_0", foreign="OLLAMA_KV_CACHE_TYPE", effect=LOAD, remote=True,
    )  # fmt: skip
    inspect: bool = setting(
        "let requests collect activations and steer answers, with engines that can; slower", False,
        flag=True, effect=LOAD, remote=True,
    )  # fmt: skip
    inspect_limit_bytes: kinds.Size = setting(
        "most bytes that a request may collect", 64 * 1024 * 1024, remote=True
    )
    gpu_overhead_bytes: kinds.Size = setting(
        "memory to leave free on each GPU", 0, example="1GiB", foreign="OLLAMA_GPU_OVERHEAD",
        effect=RESTART,
    )  # fmt: skip
    engine_paths: EnginePaths = setting(
        "paths of engines: the folder of an environment, or a program", (),
        example="llama-server=/opt/llama/llama-server", effect=RESTART,
    )  # fmt: skip
    engine_args: Arguments = setting(
        "more arguments for the engine, like those after --", (), example="--seed 1", effect=LOAD
    )
