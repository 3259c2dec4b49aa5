"""A small model on this disk that could draft for another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny import write_tiny_gguf
from vllama.models.library import Library, open_library
from vllama.models.resolve.drafts import find_draft, suggest_draft
from vllama.models.settings import ModelSettings, ModelsSettings, ModelTables

MANY = [f"<|{number}|>" for number in range(4000)]
"""So many that the header's reader skips the list of tokens."""


def open_folder(folder: Path, *tables: tuple[str, ModelSettings]) -> Library:
    return open_library(
        ModelsSettings(
            hf_cache_dir=folder / "hub",
            folders=(folder,),
            package_dirs=(),
            tables=ModelTables(tables),
        )
    )


@pytest.fixture
def library(tmp_path: Path) -> Library:
    folder = tmp_path / "models"
    folder.mkdir()
    write_tiny_gguf(folder / "large.gguf", n_embd=128, n_layer=8, n_ff=1024, tokens=MANY)
    write_tiny_gguf(folder / "near.gguf", n_embd=128, n_layer=4, n_ff=512, tokens=MANY)
    write_tiny_gguf(folder / "other.gguf", n_embd=8, tokens=[*MANY[:-1], "<|x|>"])
    return open_folder(folder)


def find(library: Library, name: str = "large") -> str | None:
    bundle = library.find(name)
    found = find_draft(bundle, library.info(bundle), library.list(), library.info)
    return found.name if found else None


def test_a_small_model_of_the_same_vocabulary(library: Library) -> None:
    folder = library.find("large").path.parent
    assert find(library) is None  # one has too many weights, the other has another token
    write_tiny_gguf(folder / "small.gguf", n_embd=16, tokens=MANY)
    write_tiny_gguf(folder / "smaller.gguf", n_embd=8, tokens=MANY, template=None)
    assert find(library) == "smaller:latest"
    assert find(library, "smaller") is None
    bundle = library.find("large")
    (said,) = suggest_draft(bundle, library.info(bundle), library.list(), library.info)
    assert "'smaller:latest'" in said and "DRAFT" in said
    drafting = replace(bundle, draft=folder / "small.gguf")
    assert suggest_draft(drafting, library.info(bundle), library.list(), library.info) == []


def test_special_tokens_have_to_be_the_same(library: Library) -> None:
    folder = library.find("large").path.parent
    write_tiny_gguf(
        folder / "small.gguf", n_embd=8, tokens=MANY, extra=lambda w: w.add_eot_token_id(2)
    )
    assert find(library) == "small:latest"
    write_tiny_gguf(
        folder / "small.gguf",
        n_embd=8,
        tokens=MANY,
        extra=lambda w: w.kv_data[0].pop("tokenizer.ggml.eos_token_id"),
    )
    assert find(library) is None


def test_a_damaged_model_is_passed_over(library: Library) -> None:
    folder = library.find("large").path.parent
    write_tiny_gguf(folder / "small.gguf", n_embd=8, tokens=MANY)
    (folder / "broken.gguf").write_bytes(b"GGUF")
    assert find(library) == "small:latest"


def test_a_table_may_have_it_found(library: Library) -> None:
    folder = library.find("large").path.parent
    by_table = open_folder(folder, ("*", ModelSettings(draft="auto")))
    assert by_table.find("large").draft is None
    small = write_tiny_gguf(folder / "small.gguf", n_embd=8, tokens=MANY)
    (folder / "broken.gguf").write_bytes(b"GGUF")
    for bundle in (by_table.find("large"), *by_table.list()):
        is_large = bundle.name in ("large:latest", "near:latest")
        assert bundle.draft == (small if is_large else None), bundle.name
    assert by_table.info(by_table.find("large")).draft_kind == "simple"
