"""Quantizations, progress lines, causes: text in, values out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import BadRequest
from vllama.models.convert.tools import (
    BITS,
    DIRECT,
    check_requantize,
    estimate_size,
    find_reason,
    parse_progress,
    parse_quant,
)
from vllama.models.names.quant import _FILE_TYPES, choose_intermediate
from vllama.models.types import ModelInfo


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("q4_k_m", "Q4_K_M"),
        (" Q8_0 ", "Q8_0"),
        ("fp16", "F16"),
        ("bf16", "BF16"),
        ("q4_k", "Q4_K_M"),
    ],
)
def test_names(text, name):
    assert parse_quant(text) == name


@pytest.mark.parametrize(
    ("text", "meant"),
    [("q4km", "Q4_K_M"), ("q4_k_l", "Q4_K"), ("q8", "Q8_0"), ("iq1_s", ""), ("", ""), ("x", "")],
)
def test_a_wrong_name_lists_the_valid_ones(text, meant):
    with pytest.raises(BadRequest) as caught:
        parse_quant(text)
    assert f'"{text}"' in caught.value.message
    assert all(name in caught.value.hint for name in BITS)
    assert meant in caught.value.hint.partition("known are")[0]


def test_every_name_is_one_of_llama_cpps():
    assert set(BITS) <= set(_FILE_TYPES.values())
    assert set(DIRECT) < set(BITS)


@pytest.mark.parametrize("has", ["F16", "BF16", "f32"])
def test_what_can_be_quantized(has):
    check_requantize("m", has, "Q4_K_M")


@pytest.mark.parametrize("has", ["Q8_0", "Q4_K_M", "MXFP4", None, ""])
def test_what_cannot(has):
    with pytest.raises(BadRequest, match="already"):
        check_requantize("m", has, "Q4_0")


@pytest.mark.parametrize(
    ("stored", "via"), [("F16", "F16"), ("BF16", "BF16"), ("F32", "BF16"), ("FP8", "BF16")]
)
def test_what_is_written_on_the_way(stored, via):
    assert choose_intermediate(stored) == via


@given(st.integers(1, 10**12), st.sampled_from(sorted(BITS)))
def test_an_estimate_is_never_too_small_nor_larger_than_16_bits(parameters, quant):
    size = estimate_size(ModelInfo(architecture="x", parameter_count=parameters), quant)
    assert size >= int(parameters * BITS[quant] / 8)
    assert size <= parameters * max(BITS[quant], 16) / 8


# SmolLM2-135M as measured: 134.5 million parameters
@pytest.mark.parametrize(
    ("quant", "real"),
    [("BF16", 270_885_728), ("Q8_0", 144_811_296), ("Q4_K_M", 105_453_920), ("Q3_K_M", 93_509_984)],
)
def test_the_estimate_of_a_small_model_is_near(quant, real):
    info = ModelInfo(architecture="llama", parameter_count=134_515_008)
    assert real * 0.9 <= estimate_size(info, quant) + 2_000_000 <= real * 1.35


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("Writing:  43%|████▎     | 116M/269M [00:01<00:01, 100Mbyte/s]", 0.43),
        ("Writing: 100%|██████████| 269M/269M [00:09<00:00, 27.2Mbyte/s]", 1.0),
        ("Writing:   0%|          | 0.00/269M [00:00<?, ?byte/s]", 0.0),
        ("INFO:gguf.gguf_writer:Writing the following files:", None),
        ("", None),
    ],
)
def test_the_converters_bar(line, share):
    assert parse_progress(line) == share


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("[   1/ 272] output_norm.weight   - [   576,      1,      1,      1], type =", 1 / 272),
        ("[ 272/ 272] blk.29.ffn_up.weight - [   576,   1536,      1,      1], type =", 1.0),
        ("[   1/   0] x", None),
        ("llama_model_quantize_impl: quant size  =    98.87 MiB (6.17 BPW)", None),
    ],
)
def test_the_quantizers_numbers(line, share):
    assert parse_progress(line) == share


@given(st.text())
def test_any_line_is_a_share_or_none(line):
    share = parse_progress(line)
    assert share is None or 0 <= share <= 1


@pytest.mark.parametrize(
    ("output", "code", "reason"),
    [
        (
            "INFO:hf-to-gguf:Loading model: x\n"
            "ERROR:hf-to-gguf:Model FooForCausalLM is not supported\nbye",
            1,
            "ERROR:hf-to-gguf:Model FooForCausalLM is not supported",
        ),
        (
            "Traceback (most recent call last):\n  File …\n"
            "KeyError: 'x'\nThen:\nNotImplementedError: Quant method is not yet supported: 'foo'\n",
            1,
            "NotImplementedError: Quant method is not yet supported: 'foo'",
        ),
        (
            "[   7/ 272] blk.0.attn_v.weight - llama_model_quantize: failed to quantize: "
            "requantizing from type q8_0 is disabled\nmain: failed to quantize model from 'x'",
            1,
            "llama_model_quantize: failed to quantize: requantizing from type q8_0 is disabled",
        ),
        ("only this\n\n", 3, "only this"),
        ("", 3, "it exited with code 3"),
        ("half", -9, "it was killed, probably because memory ran out"),
        ("half", -15, "it was killed by signal 15"),
    ],
)
def test_reasons(output, code, reason):
    assert find_reason(output.splitlines(), code) == reason


@given(st.lists(st.text()), st.integers(-20, 255).filter(bool))
def test_there_is_always_a_reason(output, code):
    assert find_reason(output, code)
