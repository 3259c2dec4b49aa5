"""The memory formulas against numbers from llama.cpp's own log."""

from dataclasses import replace

import pytest

from tests.facts import GIB, INFO, MIB
from vllama.engines.base import Overhead
from vllama.plan.fit import default_context, estimate, kv_bytes, largest_context


@pytest.mark.parametrize(
    ("context", "mib"), [(512, 11.25), (5000, 112.5), (8192, 180.0)]
)  # SmolLM2-135M, from llama.cpp's log
def test_kv_cache_is_what_llama_cpp_allocates(context, mib):
    assert kv_bytes(INFO, context) == mib * MIB


def test_heads_may_differ_from_layer_to_layer():
    info = replace(INFO, block_count=3, head_count_kv=(1, 0, 2), key_length=64, value_length=64)
    assert kv_bytes(info, 256) == 256 * 3 * 128 * 2


def test_a_header_without_heads_gives_nothing_rather_than_an_error():
    assert kv_bytes(replace(INFO, head_count=None, head_count_kv=None), 512) == 0
    assert kv_bytes(replace(INFO, block_count=None), 512) == 0


def test_compute_buffer_is_a_batch_of_logits():
    memory = estimate(INFO, 8192, Overhead(), every_row=False, on_gpu=False)
    assert memory.compute_bytes == 96 * MIB
    every = estimate(INFO, 8192, Overhead(), every_row=True, on_gpu=False)
    assert every.compute_bytes == 8192 * 49152 * 4


@pytest.mark.parametrize(
    ("gpu_gib", "context"), [(0, 4096), (16, 4096), (24, 32768), (46, 32768), (48, 262_144)]
)
def test_ollamas_tiers(gpu_gib, context):
    assert default_context(gpu_gib * GIB) == context


def test_nothing_fits_into_too_little():
    assert largest_context(INFO, 8192, 10 * MIB, Overhead(), on_gpu=False) is None
