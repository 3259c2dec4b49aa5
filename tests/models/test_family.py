"""The sizes of a family, by library name and by hub name."""

from __future__ import annotations

import pytest

from vllama.models.aliases import list_family_sizes
from vllama.models.names.ref import ModelRef


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
