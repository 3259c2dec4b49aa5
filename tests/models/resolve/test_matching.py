"""Is a repository another form of a model? By its name and its number of parameters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.models.resolve.matching import (
    QUANTIZERS,
    explain_name_mismatch,
    explain_size_mismatch,
    get_scheme,
    guess_gguf_names,
    guess_quantized_names,
    rank_publisher,
)


@pytest.mark.parametrize(
    ("base", "child"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B-GGUF"),
        ("Qwen/Qwen3-0.6B", "bartowski/Qwen_Qwen3-0.6B-GGUF"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B-GPTQ-Int8"),
        ("Qwen/Qwen3-4B", "mradermacher/Qwen3-4B-i1-GGUF"),
        ("Qwen/Qwen3-4B", "unsloth/Qwen3-4B-unsloth-bnb-4bit"),
        ("Qwen/Qwen3-8B", "somebody/Qwen3-8B-Q4_K_M-GGUF"),
        ("meta-llama/Llama-3.1-8B-Instruct", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "u/Llama-3-8B-Instruct-GGUF"),
        ("meta-llama/Llama-2-7b-chat-hf", "TheBloke/Llama-2-7B-Chat-GGUF"),
        ("openai/gpt-oss-20b", "ggml-org/gpt-oss-20b-mxfp4-GGUF"),
        ("google/gemma-3-1b-it", "ggml-org/gemma-3-1b-it-qat-GGUF"),
        ("microsoft/phi-4", "microsoft/phi-4-gguf"),
        ("Org/Model", "RedHatAI/Model-quantized.w4a16"),
        ("Org/Model_v2.1", "u/model-v2-1-gguf"),
    ],
)
def test_forms(base: str, child: str) -> None:
    assert explain_name_mismatch(base, child) is None


@pytest.mark.parametrize(
    ("base", "child"),
    [
        ("meta-llama/Llama-3.2-3B", "unsloth/Llama-3.2-3B-Instruct-GGUF"),
        ("meta-llama/Llama-3.2-3B-Instruct", "unsloth/Llama-3.2-3B-GGUF"),
        ("meta-llama/Llama-3.2-3B-Instruct", "NousResearch/Hermes-3-Llama-3.2-3B-GGUF"),
        ("deepseek-ai/DeepSeek-R1", "unsloth/DeepSeek-R1-Distill-Qwen-7B-GGUF"),
        ("deepseek-ai/DeepSeek-R1", "unsloth/DeepSeek-R1-0528-GGUF"),
        ("Qwen/Qwen3-4B", "u/Qwen3-4B-Thinking-2507-GGUF"),
        ("Qwen/Qwen3-4B", "u/Qwen3-34B-GGUF"),
        ("Qwen/Qwen3-4B", "u/Josiefied-Qwen3-4B-abliterated-v1-gguf"),
        ("Qwen/Qwen2.5-7B", "u/Qwen2.5-Coder-7B-GGUF"),
        ("microsoft/phi-4", "u/phi-4-mini-GGUF"),
        ("Org/Model", "u/Model-lora-GGUF"),
    ],
)
def test_other_models(base: str, child: str) -> None:
    assert explain_name_mismatch(base, child)


words = st.lists(st.from_regex(r"[a-z]{2,6}[0-9]?", fullmatch=True), min_size=1, max_size=4)
quants = st.sampled_from(["Q4_K_M", "Q8_0", "IQ3_XXS", "UD-Q4_K_XL", "BF16"])


@given(words, quants, st.sampled_from(QUANTIZERS))
def test_what_quantizers_make_is_a_form(name: list[str], quant: str, who: str) -> None:
    base = f"maker/{'-'.join(name)}"
    assert explain_name_mismatch(base, f"{who}/{'-'.join(name)}-{quant}-GGUF") is None
    assert all(explain_name_mismatch(base, other) is None for other in guess_gguf_names(base))
    assert all(explain_name_mismatch(base, other) is None for other in guess_quantized_names(base))


@given(words, st.sampled_from(["abliterated", "uncensored", "distill", "merge", "heretic"]))
def test_an_extra_word_is_another_model(name: list[str], extra: str) -> None:
    stem = "-".join(name)
    for child in (f"u/{stem}-{extra}-GGUF", f"u/{extra}-{stem}-GGUF", f"u/{stem}-GGUF-{extra}"):
        assert extra in (explain_name_mismatch(f"maker/{stem}", child) or "")


@pytest.mark.parametrize(
    ("base", "child", "pipeline", "fits"),
    [
        (100, 100, None, True),
        (100, 96, None, True),
        (100, 94, None, False),
        (100, 106, None, False),
        (100, 75, "image-text-to-text", True),
        (100, 106, "image-text-to-text", False),
        (100, 65, "any-to-any", False),
        (None, 5, None, True),
        (5, None, None, True),
    ],
)
def test_sizes(base: int | None, child: int | None, pipeline: str | None, fits: bool) -> None:
    assert (explain_size_mismatch(base, child, pipeline, named="o/m") is None) is fits


def test_ranks() -> None:
    ids = ["zzz/m", "TheBloke/m", "bartowski/m", "ggml-org/m", "O/m"]
    assert sorted(ids, key=lambda child: rank_publisher("o/m", child)) == ids[::-1]


@pytest.mark.parametrize(
    ("child", "kind"),
    [
        ("o/m-FP8-dynamic", "FP8"),
        ("o/m-AWQ", "AWQ"),
        ("o/m-quantized.w4a16", "GPTQ"),
        ("o/m-GPTQ-Int8", "INT8"),
        ("o/m-NVFP4", "NVFP4"),
        ("o/m-bnb-4bit", "BNB"),
        ("o/m", None),
    ],
)
def test_schemes(child: str, kind: str | None) -> None:
    assert get_scheme(child) == kind
