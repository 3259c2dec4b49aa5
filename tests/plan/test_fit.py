"""The memory formulas against numbers from llama.cpp's own log."""

from dataclasses import replace

import pytest

from tests.facts import GIB, INFO, MIB
from vllama.engines.base import Overhead
from vllama.models.types import ModelInfo
from vllama.plan.fit import (
    choose_default_context,
    estimate_model_memory,
    find_largest_context,
    find_windowed_layers,
    kv_bytes,
)

# Gemma 3 270M
GEMMA = ModelInfo(
    architecture="gemma3",
    embedding_length=640,
    block_count=18,
    head_count=4,
    head_count_kv=(1,),
    key_length=256,
    value_length=256,
    sliding_window=512,
    vocab_size=262_144,
)
NARROW = Overhead(whole_windows=False)


@pytest.mark.parametrize(
    ("info", "context", "cache_type", "overhead", "mib"),
    [
        (INFO, 512, None, Overhead(), 11.25),
        (INFO, 5000, None, Overhead(), 112.5),
        (INFO, 8192, None, Overhead(), 180.0),
        (INFO, 8192, "q8_0", Overhead(), 95.625),
        (INFO, 8192, None, NARROW, 180.0),
        (GEMMA, 32768, None, Overhead(), 576.0),
        (GEMMA, 32768, None, NARROW, 111.0),
        (GEMMA, 8192, None, Overhead(whole_windows=False, logits_rows=128), 35.25),
    ],
)
def test_kv_cache_is_what_llama_cpp_allocates(info, context, cache_type, overhead, mib):
    assert kv_bytes(info, context, overhead, cache_type) == mib * MIB


@pytest.mark.parametrize(
    ("info", "context", "flash", "rows", "logged_mib"),
    [
        (INFO, 512, True, 512, 98.25),
        (INFO, 8192, True, 512, 98.25),
        (INFO, 5000, False, 512, 106.38),
        (INFO, 8192, False, 512, 166.38),
        (GEMMA, 32768, True, 512, 514.50),
        (GEMMA, 8192, True, 128, 128.63),
    ],
)
def test_compute_buffer_is_near_what_llama_cpp_logs(info, context, flash, rows, logged_mib):
    overhead = Overhead(logits_rows=rows, batch_rows=rows)
    memory = estimate_model_memory(
        info, context, overhead, every_row=False, on_gpu=False, flash=flash
    )
    assert memory.compute_bytes / MIB == pytest.approx(logged_mib, rel=0.002)


def test_the_file_says_which_layers_see_a_window():
    by_list = replace(
        GEMMA,
        block_count=2,
        metadata={"gemma3.attention.sliding_window_pattern": [True, False]},
    )
    assert list(find_windowed_layers(by_list)) == [True, False]
    by_period = replace(
        GEMMA, block_count=4, metadata={"gemma3.attention.sliding_window_pattern": 2}
    )
    assert list(find_windowed_layers(by_period)) == [True, False, True, False]
    assert list(find_windowed_layers(replace(GEMMA, sliding_window=None))) == [False] * 18
    assert list(find_windowed_layers(replace(GEMMA, architecture="phi3"))) == [False] * 18


def test_an_encoder_has_no_cache():
    info = replace(INFO, metadata={"llama.attention.causal": False})
    assert kv_bytes(info, 512, Overhead()) == 0


def test_heads_may_differ_from_layer_to_layer():
    info = replace(INFO, block_count=3, head_count_kv=(1, 0, 2), key_length=64, value_length=64)
    assert kv_bytes(info, 256, Overhead()) == 256 * 3 * 128 * 2


def test_a_header_without_heads_gives_nothing_rather_than_an_error():
    assert kv_bytes(replace(INFO, head_count=None, head_count_kv=None), 512, Overhead()) == 0
    assert kv_bytes(replace(INFO, block_count=None), 512, Overhead()) == 0


def test_logits_of_every_position_are_kept():
    every = estimate_model_memory(INFO, 8192, Overhead(), every_row=True, on_gpu=False)
    assert every.compute_bytes == pytest.approx(8192 * 49152 * 4, rel=0.04)


@pytest.mark.parametrize(
    ("gpu_gib", "context"), [(0, 4096), (16, 4096), (24, 32768), (46, 32768), (48, 262_144)]
)
def test_ollamas_tiers(gpu_gib, context):
    assert choose_default_context(gpu_gib * GIB) == context


def test_nothing_fits_into_too_little():
    def fits(context: int) -> bool:
        memory = estimate_model_memory(INFO, context, Overhead(), every_row=False, on_gpu=False)
        return memory.total_bytes <= 10 * MIB

    assert find_largest_context(8192, 1, 2048, fits) is None
