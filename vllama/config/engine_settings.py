"""The settings of engines: which one runs a model, and how."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from vllama.config import kinds, parse, tables
from vllama.config.setting import Effect, setting
from vllama.models.settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The part of `Config` that says how models are run.

    `context_length` is in tokens, `gpu_layers` -1 means all. `keep_alive_s` may be `math.inf`;
    `load_timeout_s` and `hang_timeout_s` None: no limit. `num_parallel` and `max_loaded_models`
    None leave it to engine and memory.
    """

    model: str | None = setting(
        None, kinds.text("NAME", parse.model), "model to load at the start",
        example="Qwen/Qwen3-0.6B", flag="--model", short="-m", effect=Effect.RESTART,
    )  # fmt: skip
    engine: str | None = setting(
        None, kinds.auto(kinds.NAME), "engine to use; auto takes the best for this machine",
        example="auto", flag="--engine", effect=Effect.NEXT_LOAD, remote=True,
    )  # fmt: skip
    strict: bool = setting(
        False, kinds.SWITCH, "fail if an engine does not start, instead of trying another plan",
        example="true", flag="--strict", effect=Effect.NEXT_LOAD, remote=True,
    )  # fmt: skip
    context_length: int | None = setting(
        None, kinds.auto(kinds.CONTEXT, "0"),
        "context in tokens; 0: as much as the model and the memory allow",
        example="8192", flag="--ctx", foreign="OLLAMA_CONTEXT_LENGTH", effect=Effect.NEXT_LOAD,
        remote=True,
    )  # fmt: skip
    max_tokens: int | None = setting(
        None, kinds.auto(kinds.number(1), "0"),
        "most tokens of any answer, whatever a request asks for; 0: no limit",
        example="4096", flag="--max-tokens", remote=True,
    )  # fmt: skip
    gpu_layers: int | None = setting(
        None, kinds.auto(kinds.LAYERS), "layers to put on the GPU: all, or a number; 0: none",
        example="all", flag="--gpu-layers", effect=Effect.NEXT_LOAD, remote=True,
    )  # fmt: skip
    threads: int | None = setting(
        None, kinds.auto(kinds.number(1), "0"), "CPU threads for an engine",
        example="8", flag="--threads", effect=Effect.NEXT_LOAD, remote=True,
    )  # fmt: skip
    keep_alive_s: float = setting(
        300.0, kinds.DURATION, "how long an idle model stays loaded; negative: forever",
        example="5m", flag="--keep-alive", foreign="OLLAMA_KEEP_ALIVE", remote=True,
    )  # fmt: skip
    load_timeout_s: float | None = setting(
        300.0, kinds.TIMEOUT, "how long a load may go without progress; 0: no limit",
        example="5m", flag="--load-timeout", foreign="OLLAMA_LOAD_TIMEOUT", effect=Effect.NEXT_LOAD,
        remote=True,
    )  # fmt: skip
    num_parallel: int | None = setting(
        None, kinds.auto(kinds.number(1), "0"),
        "concurrent requests per model; auto: by engine (llama-server: 1, or 4 if several come)",
        example="4", flag="--parallel", foreign="OLLAMA_NUM_PARALLEL", effect=Effect.NEXT_LOAD,
        remote=True,
    )  # fmt: skip
    max_loaded_models: int | None = setting(
        None, kinds.auto(kinds.number(1), "0"), "models loaded at once; auto: as memory allows",
        example="3", flag="--max-loaded-models", foreign="OLLAMA_MAX_LOADED_MODELS", remote=True,
    )  # fmt: skip
    max_queue: int = setting(
        512, kinds.number(0), "requests that may wait for a model; others are refused",
        example="512", flag="--max-queue", foreign="OLLAMA_MAX_QUEUE", remote=True,
    )  # fmt: skip
    replicas: int = setting(
        1, kinds.number(1, 64), "processes of each model, which share its requests",
        example="2", flag="--replicas", effect=Effect.RESTART,
    )  # fmt: skip
    hang_timeout_s: float | None = setting(
        30.0, kinds.TIMEOUT,
        "how long an engine may be silent during an answer before it is restarted; 0: never",
        example="30s", flag="--hang-timeout", remote=True,
    )  # fmt: skip
    cache_disk_bytes: int = setting(
        0, kinds.SIZE,
        "disk space for conversations, so that they need not be read again after a model was "
        "unloaded, stopped or killed; 0: none are kept",
        example="20GB", flag="--cache-disk", effect=Effect.RESTART,
    )  # fmt: skip
    cache_disk_writes_per_day_bytes: int = setting(
        50 * 1000**3, kinds.SIZE, 
        "how much may be written to disk in a day to save conversations; 0: no limit",
        example="50GB", flag="--cache-disk-writes-per-day", effect=Effect.RESTART,
    )  # fmt: skip
    resume: int = setting(
        2, kinds.number(0, 10),
        "how many times an answer is resumed after its engine dies; 0: it ends with an error",
        example="2", flag="--resume", remote=True,
    )  # fmt: skip
    models: tuple[tuple[str, ModelSettings], ...] = setting(
        (), tables.MODELS,
        'settings of single models, or of all that a pattern matches: tables [models."NAME"]',
        example='{ "qwen3:*" = { context = 8192 } }',
    )  # fmt: skip
    go_template: bool = setting(
        True, kinds.SWITCH,
        "use a Modelfile's Go template; false prefers the Jinja template of the model's own file",
        example="true", foreign="OLLAMA_GO_TEMPLATE", effect=Effect.RESTART,
    )  # fmt: skip
    flash_attention: bool | None = setting(
        None, kinds.auto(kinds.SWITCH), "flash attention; auto: where it works",
        example="auto", foreign="OLLAMA_FLASH_ATTENTION", effect=Effect.NEXT_LOAD, remote=True,
    )  # fmt: skip
    kv_cache_type: str | None = setting(
        None, kinds.auto(kinds.choice(*kinds.KV_CACHE_TYPES)), "number format of the KV cache",
        example="q8_0", foreign="OLLAMA_KV_CACHE_TYPE", effect=Effect.NEXT_LOAD, remote=True,
    )  # fmt: skip
    inspect: bool = setting(
        False, kinds.SWITCH,
        "let requests collect activations and steer answers, with engines that can; slower",
        example="true", flag="--inspect", effect=Effect.NEXT_LOAD, remote=True,
    )  # fmt: skip
    inspect_limit_bytes: int = setting(
        64 * 1024 * 1024, kinds.SIZE, "most bytes that a request may collect",
        example="64MiB", remote=True,
    )  # fmt: skip
    gpu_overhead_bytes: int = setting(
        0, kinds.SIZE, "memory to leave free on each GPU",
        example="1GiB", foreign="OLLAMA_GPU_OVERHEAD", effect=Effect.RESTART,
    )  # fmt: skip
    engine_paths: tuple[tuple[str, Path], ...] = setting(
        (), kinds.table("engine=path", parse.path),
        "paths of engines: the folder of an environment, or a program",
        example="llama-server=/opt/llama/llama-server", effect=Effect.RESTART,
    )  # fmt: skip
    engine_args: tuple[str, ...] = setting(
        (), kinds.many(kinds.text("ARGUMENT", str), shlex.split, shlex.join),
        "more arguments for the engine, like those after --",
        example="--seed 1", effect=Effect.NEXT_LOAD,
    )  # fmt: skip
