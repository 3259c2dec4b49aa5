"""Ollama's library names → repositories of the hub."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import ConfigError
from vllama.models.aliases import (
    check_aliases,
    find_hub_alias,
    list_families,
    list_family_sizes,
    list_tags,
)
from vllama.models.names.quant import parse_quant_tag
from vllama.models.names.ref import Kind, ModelRef


def alias(name: str, own: dict[str, str] | None = None) -> str | None:
    found = find_hub_alias(ModelRef.parse(name), own or {})
    return f"{found.hub_id}:{found.tag}" if found else None


@pytest.mark.parametrize(
    ("name", "stands_for"),
    [
        ("llama3.2", "meta-llama/Llama-3.2-3B-Instruct:latest"),
        ("llama3.2:latest", "meta-llama/Llama-3.2-3B-Instruct:latest"),
        ("LLAMA3.2:1B", "meta-llama/Llama-3.2-1B-Instruct:latest"),
        ("llama3.2:3b-text", "meta-llama/Llama-3.2-3B:latest"),
        ("llama3.2:3b-instruct-q8_0", "meta-llama/Llama-3.2-3B-Instruct:Q8_0"),
        ("llama3.2:3b-q4_K_M", "meta-llama/Llama-3.2-3B-Instruct:Q4_K_M"),
        ("llama3.2:3b-text-q4_K_M", "meta-llama/Llama-3.2-3B:Q4_K_M"),
        ("llama3.2:q8_0", "meta-llama/Llama-3.2-3B-Instruct:Q8_0"),
        ("registry.ollama.ai/library/llama3.2:3b", "meta-llama/Llama-3.2-3B-Instruct:latest"),
        ("qwen3", "Qwen/Qwen3-8B:latest"),
        ("qwen3:0.6b", "Qwen/Qwen3-0.6B:latest"),
        ("qwen3:0.6b-q8_0", "Qwen/Qwen3-0.6B:Q8_0"),
        ("qwen3:0.6b-fp16", "Qwen/Qwen3-0.6B:FP16"),
        ("qwen3:30b-a3b", "Qwen/Qwen3-30B-A3B:latest"),
        ("qwen3:30b-a3b-instruct-2507-q4_K_M", "Qwen/Qwen3-30B-A3B-Instruct-2507:Q4_K_M"),
        ("gpt-oss:20b", "openai/gpt-oss-20b:latest"),
        ("gemma3:4b-it-qat", "google/gemma-3-4b-it-qat-q4_0-gguf:latest"),
        ("gemma3:4b-it-q4_K_M", "google/gemma-3-4b-it:Q4_K_M"),
        ("mistral:7b-instruct-v0.2-q4_0", "mistralai/Mistral-7B-Instruct-v0.2:Q4_0"),
        ("deepseek-r1:8b", "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B:latest"),
        ("deepseek-r1:7b-qwen-distill-q8_0", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B:Q8_0"),
        ("nomic-embed-text", "nomic-ai/nomic-embed-text-v1.5:latest"),
        ("nomic-embed-text:v1.5", "nomic-ai/nomic-embed-text-v1.5:latest"),
        ("mxbai-embed-large:335m-v1-fp16", "mixedbread-ai/mxbai-embed-large-v1:FP16"),
        ("all-minilm", "sentence-transformers/all-MiniLM-L6-v2:latest"),
        ("bge-m3", "BAAI/bge-m3:latest"),
        ("snowflake-arctic-embed:xs", "Snowflake/snowflake-arctic-embed-xs:latest"),
        ("qwen3-embedding:0.6b", "Qwen/Qwen3-Embedding-0.6B:latest"),
        ("embeddinggemma", "google/embeddinggemma-300m:latest"),
        ("smollm2:135m", "HuggingFaceTB/SmolLM2-135M-Instruct:latest"),
        # not ours to guess
        ("llama3.2:7b", None),
        ("llama3.2:3b-vision", None),
        ("nosuch", None),
        ("me/llama3.2", None),
        ("reg.example.com/library/llama3.2", None),
        ("meta-llama/Llama-3.2-3B-Instruct", None),
        ("/models/llama3.2", None),
    ],
)
def test_names(name: str, stands_for: str | None) -> None:
    assert alias(name) == stands_for


def test_every_entry_is_a_repository_or_a_tag() -> None:
    assert len(list_families()) >= 60
    repositories = set()
    for model in list_families():
        assert model == model.lower() and "latest" in list_tags(model)
        for tag in list_tags(model):
            assert tag == tag.lower() and parse_quant_tag(tag) is None
            found = find_hub_alias(ModelRef.parse(f"{model}:{tag}"))
            assert found is not None and found.kind is Kind.HUB and found.tag == "latest"
            assert re.fullmatch(r"[\w-]+/[\w.-]+", found.hub_id or "")
            repositories.add(found.hub_id)
    # one spelling only: the hub's lists know no other
    assert len({str(name).lower() for name in repositories}) == len(repositories)


@given(st.sampled_from(list_families()), st.sampled_from(["q8_0", "q4_K_M", "IQ4_XS", "bf16"]))
def test_a_quantization_never_changes_the_model(model: str, quant: str) -> None:
    for tag in list_tags(model):
        plain = find_hub_alias(ModelRef.parse(f"{model}:{tag}"))
        with_quant = find_hub_alias(ModelRef.parse(f"{model}:{tag}-{quant}"))
        assert plain is not None and with_quant is not None
        assert with_quant.hub_id == plain.hub_id and with_quant.tag == quant.upper()


OWN = {
    "mine": "hf.co/org/Repo:Q5_K_M",
    "llama3.2:3b": "other/Llama",
    "gpt-4": "qwen3:0.6b",
    "team/model": "org/Team-Model",
}


@pytest.mark.parametrize(
    ("name", "stands_for"),
    [
        ("mine", "org/Repo:Q5_K_M"),
        ("Mine:latest", "org/Repo:Q5_K_M"),
        ("mine:q8_0", "org/Repo:Q8_0"),
        ("mine:7b", None),
        ("llama3.2:3b", "other/Llama:latest"),
        ("llama3.2:1b", "meta-llama/Llama-3.2-1B-Instruct:latest"),
        ("gpt-4", "Qwen/Qwen3-0.6B:latest"),
        ("team/model", "org/Team-Model:latest"),
    ],
)
def test_own_aliases_come_first(name: str, stands_for: str | None) -> None:
    check_aliases(OWN)
    assert alias(name, OWN) == stands_for


@pytest.mark.parametrize(
    ("name", "target"),
    [("a b", "org/x"), ("a", "org/x/y/z/q"), ("a", "nosuch"), ("a", "/path"), ("/path", "org/x")],
)
def test_wrong_aliases_are_named(name: str, target: str) -> None:
    with pytest.raises(ConfigError, match=f'alias "{name}"') as caught:
        check_aliases({name: target})
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "family", "some"),
    [
        ("llama3.2", "llama3.2", {("llama3.2:3b", 3.0), ("llama3.2:1b", 1.0)}),
        ("smollm2:1.7b", "smollm2", {("smollm2:360m", 0.36), ("smollm2:135m", 0.135)}),
        ("meta-llama/Llama-3.2-3B-Instruct", "llama3.2", {("llama3.2:1b", 1.0)}),
        ("hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q8_0", "llama3.2", {("llama3.2:1b", 1.0)}),
    ],
)
def test_the_sizes_of_a_family(name: str, family: str, some: set[tuple[str, float]]) -> None:
    found = list_family_sizes(ModelRef.parse(name))
    assert some <= set(found)
    assert all(kin.startswith(f"{family}:") for kin, _ in found)
    assert [size for _, size in found] == sorted((size for _, size in found), reverse=True)


@pytest.mark.parametrize("name", ["nobody:7b", "org/never-heard-of-it"])
def test_a_stranger_has_no_family(name: str) -> None:
    assert list_family_sizes(ModelRef.parse(name)) == ()
