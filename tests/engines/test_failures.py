"""Exits of engines, as they were recorded, and the cause that a user is told."""

import pytest

from vllama.engines.failures import compile_failures, explain_exit
from vllama.engines.llamacpp.llama_cpp_python import ENGINE
from vllama.supervise.spec import Exit, Fault

RECORDED = [
    (
        ["llama_model_load: error loading model: unknown model architecture: 'zzama'"],
        1,
        "does not know the architecture 'zzama'",
        False,
    ),
    (
        [
            "llama_model_load: error loading model: tensor 'blk.9.ffn_up.weight' data is not "
            "within the file bounds, model is corrupted or incomplete",
            "ValueError: Failed to load model from file: /models/a.gguf",
        ],
        1,
        "cut or damaged",
        False,
    ),
    (
        ["gguf_init_from_reader: invalid magic characters: 'hell', expected 'GGUF'"],
        1,
        "not a GGUF",
        False,
    ),
    (
        [
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 4): "
            "address already in use"
        ],
        3,
        "port was taken",
        True,
    ),
    (["ValueError: Failed to create llama_context"], 1, "do not fit into memory", False),
    (
        [
            "llama_adapter_lora_init_from_file_ptr: failed to apply lora adapter: tensor "
            "'blk.0.attn_q.weight' has incorrect shape (hint: maybe wrong base model?)",
            "set_adapters_lora: adapters = 0x7fd20447e260",
        ],
        -11,
        "cannot use the model's adapter",
        False,
    ),
    (["ModuleNotFoundError: No module named 'sse_starlette'"], 1, "sse_starlette", False),
    (["something else"], 7, "exit code 7: something else", False),
    ([], -9, "out of memory", False),
    ([], -11, "SIGSEGV", False),
    ([], -4, "another CPU", False),
    ([], -40, "signal", False),
]


@pytest.mark.parametrize(("lines", "code", "cause", "retryable"), RECORDED)
def test_recorded_exit_has_its_cause(lines, code, cause, retryable):
    diagnosis = compile_failures(ENGINE.failures)(Exit(code=code, output=tuple(lines)))
    assert cause in diagnosis.cause
    assert diagnosis.retryable is retryable


def test_the_most_telling_pattern_wins_over_the_newest_line():
    lines = (
        "llama_model_load: error loading model: unknown model architecture: 'new'",
        "ValueError: Failed to load model from file: x.gguf",
    )
    assert (
        "architecture 'new'" in compile_failures(ENGINE.failures)(Exit(code=1, output=lines)).cause
    )


def test_stall_names_the_last_line():
    exit_ = Exit(code=None, stalled=True, output=("loading tensors", ""))
    assert "loading tensors" in compile_failures(())(exit_).cause


def test_a_very_long_line_is_cut():
    assert len(compile_failures(())(Exit(code=1, output=("x" * 5000,))).cause) < 400


def test_who_kills_without_need_is_not_taken_for_want_of_memory() -> None:
    assert explain_exit(Exit(code=-9, oom=True)).fault is Fault.MEMORY
    assert explain_exit(Exit(code=-9)).fault is Fault.MEMORY  # nobody knows
    by_hand = explain_exit(Exit(code=-9, oom=False))
    assert by_hand.fault is None and "memory was not short" in by_hand.cause
