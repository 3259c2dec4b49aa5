"""The judge that a pull asks: as a load would be, and careful where only the size is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.facts import CPU, GIB, H100, INFO, LLAMA_CPP_HERE, VLLM_HERE, bundle, facts
from vllama.base.errors import NotEnoughMemory
from vllama.models.types import Format, ModelInfo
from vllama.plan.choose import make_plan
from vllama.plan.form_choice import FitsHere
from vllama.plan.types import Need


def shaped(gib: float, layers: int, kv_heads: int, width: int, vocabulary: int) -> ModelInfo:
    return replace(
        INFO,
        weights_bytes=int(gib * GIB),
        block_count=layers,
        head_count=kv_heads,
        head_count_kv=(kv_heads,),
        key_length=width,
        value_length=width,
        vocab_size=vocabulary,
        context_length=32_768,
    )


# with the largest caches for their size: no grouped heads, few bits a weight, large vocabularies
GREEDY = {
    "Llama 2 7B, Q2_K": shaped(2.6, 32, 32, 128, 32_000),
    "Llama 2 13B, Q2_K": shaped(5.1, 40, 40, 128, 32_000),
    "Qwen 1.5 0.5B, Q4_K_M": shaped(0.38, 24, 16, 64, 151_936),
    "Phi 2, Q2_K": shaped(1.1, 32, 32, 80, 51_200),
    "Gemma 7B, Q2_K": shaped(3.2, 28, 16, 256, 256_000),
    "MPT 30B, Q2_K": shaped(11.7, 48, 64, 112, 50_432),
}


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.parametrize("context", [None, 2048, 16_384])
def test_what_is_certain_by_its_size_does_fit(name: str, context: int | None) -> None:
    info = GREEDY[name]
    certain = []
    for ram_gib in range(1, 200):
        machine = replace(CPU, ram_total_bytes=ram_gib * GIB)
        fits = FitsHere(facts(machine, context_length=context))
        if fits.certainly(info.weights_bytes, Format.GGUF):
            fit = fits.judge(info, Format.GGUF)
            assert fit is not None and fit.roomy, ram_gib
            certain.append(ram_gib)
    assert certain  # else nothing is ever certain


@pytest.mark.parametrize("ram_gib", [1, 4, 5, 6, 7, 16])
def test_it_reckons_as_a_load(ram_gib: int) -> None:
    info = shaped(4.6, 32, 8, 128, 128_256)
    here = facts(replace(CPU, ram_total_bytes=ram_gib * GIB))
    fit = FitsHere(here).judge(info, Format.GGUF)
    assert fit is not None
    try:
        plan = make_plan(here, bundle(), info, Need())
    except NotEnoughMemory as error:
        assert not fit.fits and fit.numbers in error.message
        return
    assert fit.fits and fit.roomy is (plan.settings.context_length >= 4096)
    assert fit.context_length == plan.settings.context_length
    assert fit.needed_bytes == plan.memory.total_bytes


def test_a_context_of_its_own() -> None:
    fits = FitsHere(facts(CPU))
    small, large = (fits.judge(GREEDY["Phi 2, Q2_K"], Format.GGUF, n) for n in (512, 32_768))
    assert small is not None and large is not None
    assert (small.context_length, large.context_length) == (512, 32_768)
    assert small.needed_bytes < large.needed_bytes


def test_without_an_engine_for_it_memory_is_not_the_question() -> None:
    assert FitsHere(facts(CPU, ())).judge(INFO, Format.GGUF) is None
    only = FitsHere(facts(H100, (VLLM_HERE,)))
    assert only.judge(INFO, Format.GGUF) is None
    assert not FitsHere(facts(CPU, ())).certainly(1, Format.GGUF)
    vocabulary = replace(INFO, weights_bytes=0)
    assert FitsHere(facts(CPU, (LLAMA_CPP_HERE,))).judge(vocabulary, Format.GGUF) is None


def test_a_refusal_names_the_context_that_fits() -> None:
    info = shaped(4.6, 32, 8, 128, 128_256)
    here = facts(replace(CPU, ram_total_bytes=7 * GIB), context_length=32_768)
    with pytest.raises(NotEnoughMemory) as caught:
        make_plan(here, bundle(), info, Need())
    assert caught.value.hint == "use --context-length 8192 or a smaller quantization"
