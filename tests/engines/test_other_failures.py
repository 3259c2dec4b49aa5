"""Exits of the engines besides the defaults, as they were recorded, and the cause that is told."""

import pytest

from tests.engines.others import MAX, MLX, SGLANG, SGLANG_JAX, TINYGRAD, TRANSFORMERS
from vllama.engines.failures import compile_failures
from vllama.supervise.spec import Exit

RECORDED = [
    (
        TRANSFORMERS,
        [
            "ValueError: Unrecognized processing class in /m. Can't instantiate a processor, a "
            "tokenizer, an image processor, a video processor or a feature extractor"
        ],
        1,
        "no tokenizer that Transformers can read",
        False,
    ),
    (TRANSFORMERS, ["MemoryError: Cannot allocate memory"], 1, "do not fit into memory", False),
    (
        TRANSFORMERS,
        ["RuntimeError: unable to mmap 269060552 bytes from file </m/model.safetensors>: "
         "Cannot allocate memory (12)"],
        1,
        "do not fit into memory",
        False,
    ),
    (
        TRANSFORMERS,
        ["ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8001): "
         "address already in use"],
        3,
        "port was taken",
        True,
    ),
    (
        TRANSFORMERS,
        ["ValueError: The checkpoint you are trying to load has model type `zzama` but "
         "Transformers does not recognize this architecture. This could be because of an issue"],
        1,
        "does not know the model's architecture",
        False,
    ),
    (
        TRANSFORMERS,
        ["safetensors_rust.SafetensorError: Error while deserializing header: header too large"],
        1,
        "cut or damaged",
        False,
    ),
    (
        MLX,
        ["2026-11-21 - ERROR - mlx_lm.server generation thread died: Model type zzama not "
         "supported.", "ValueError: Model type zzama not supported."],
        None,
        "does not know the architecture zzama",
        False,
    ),
    (
        MLX,
        ["2026-11-21 - ERROR - mlx_lm.server generation thread died: [load_safetensors] Invalid "
         "json header length /m/model.safetensors"],
        None,
        "could not load the model ([load_safetensors] Invalid json header",
        False,
    ),
    (
        MLX,
        ["2026-11-21 - ERROR - mlx_lm.server generation thread died: Resource temporarily "
         "unavailable", "RuntimeError: Resource temporarily unavailable"],
        None,
        "could not start a thread: too little memory",
        False,
    ),
    (MLX, ["OSError: [Errno 98] Address already in use"], None, "port was taken", True),
    (
        MAX,
        ["ValueError: The encoding 'bfloat16' is not compatible with the selected device type "
         "'cpu'."],
        1,
        "cannot use weights in bfloat16 on a device of type cpu",
        False,
    ),
    (MAX, ["The network port 8000 is already in use"], 1, "port was taken", True),
    (
        TINYGRAD,
        ["ValueError: Invalid tokenizer preset 'smollm'"],
        1,
        "does not know the tokenizer 'smollm'",
        False,
    ),
    (
        TINYGRAD,
        ["FileNotFoundError: [Errno 2] No such file or directory: 'clang'"],
        1,
        "compiles for the CPU with clang",
        False,
    ),
    (TINYGRAD, ["OSError: [Errno 98] Address already in use"], 1, "port was taken", True),
    (
        TINYGRAD,
        ["ModuleNotFoundError: No module named 'tinygrad.llm.kernels'"],
        1,
        "release of tinygrad is not complete",
        False,
    ),
    (
        SGLANG,
        ["    from sgl_kernel import copy_all_layer_kv_cache_cpu",
         "ImportError: cannot import name 'copy_all_layer_kv_cache_cpu' from 'sgl_kernel'"],
        1,
        "kernels are not built for this machine",
        False,
    ),
    (
        SGLANG_JAX,
        ["TypeError: LogitsProcessor.__call__() missing 1 required positional argument: 'mesh'"],
        -9,
        "a fault of its own",
        False,
    ),
    (MAX, ["Error: No such option: --fast"], 2, "does not know the argument --fast", False),
    (TRANSFORMERS, [], -9, "out of memory", False),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "lines", "code", "cause", "retryable"), RECORDED)
def test_recorded_exit_has_its_cause(engine, lines, code, cause, retryable):
    diagnosis = compile_failures(engine.failures)(Exit(code=code, output=tuple(lines)))
    assert cause in diagnosis.cause
    assert diagnosis.retryable is retryable
