"""The hub's answers, whole ones and those of careless mirrors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.models.sources.hub_json import (
    NotTheHub,
    has_sizes,
    parse_wait_s,
    read_bases,
    read_files,
    read_license,
    read_listed,
    read_repository,
    read_tree,
)
from vllama.models.types import Listed, SourceFile

SHA = "ab" * 32
FILE = {"rfilename": "m.gguf", "size": 7, "blobId": "c1", "lfs": {"sha256": SHA, "size": 7}}
PAGE: dict[str, Any] = {"id": "o/r", "sha": "f" * 40, "siblings": [FILE]}


def test_a_whole_page() -> None:
    page = {
        **PAGE,
        "gated": "manual",
        "cardData": {"license": "other", "license_name": "gem", "base_model": "o/base"},
        "tags": ["license:other"],
        "pipeline_tag": "text-generation",
        "safetensors": {"parameters": {"BF16": 40, "I64": 2}, "total": 42},
    }
    found = read_repository(page)
    assert (found.hub_id, found.commit, found.gated) == ("o/r", "f" * 40, "manual")
    assert found.files == (SourceFile(path="m.gguf", size_bytes=7, etag=SHA, sha256=SHA),)
    assert (found.license, found.bases, found.pipeline) == ("gem", ("o/base",), "text-generation")
    assert found.parameter_count == 42
    assert has_sizes(page)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"safetensors": {"parameters": {"BF16": 5}, "total": 5}}, 5),
        ({"safetensors": {"parameters": {"I32": 5, "BF16": 1}, "total": 6}}, None),
        ({"safetensors": {"total": 5}}, 5),
        ({"safetensors": {"total": None}}, None),
        ({"gguf": {"total": 9}, "safetensors": {"total": 5}}, 9),
        ({"gguf": [], "safetensors": "many"}, None),
        ({}, None),
    ],
)
def test_parameters(fields: Mapping[str, Any], count: int | None) -> None:
    assert read_repository({**PAGE, **fields}).parameter_count == count


@pytest.mark.parametrize(
    "page",
    [
        None,
        [],
        "text",
        {},
        {"id": "o/r"},
        {**PAGE, "sha": 5},
        {**PAGE, "sha": "../../x"},
        {**PAGE, "sha": ".."},
        {**PAGE, "siblings": [{}]},
        {**PAGE, "siblings": [{"rfilename": "../evil.gguf"}]},
        {**PAGE, "siblings": [{"rfilename": "/etc/evil.gguf"}]},
        {**PAGE, "siblings": [{"rfilename": "a/../../evil.gguf"}]},
        {**PAGE, "siblings": [{"rfilename": "a\0b"}]},
    ],
)
def test_what_is_no_page_of_a_repository(page: object) -> None:
    with pytest.raises(NotTheHub):
        read_repository(page)


def test_a_list_passes_over_what_names_nothing() -> None:
    rows = [None, {}, {"id": 5}, {"id": "o/a"}, {"id": "o/b", "private": True, "gated": True}]
    assert read_listed(rows) == [
        Listed(hub_id="o/a"),
        Listed(hub_id="o/b", gated="auto", disabled=True),
    ]
    with pytest.raises(NotTheHub):
        read_listed({"error": "no"})


def test_a_tree() -> None:
    rows = [
        {"type": "directory", "path": "a"},
        {"type": "file", "path": "a/config.json", "size": 3, "oid": "d1"},
        {"type": "file", "path": "m.gguf", "size": 9, "oid": "d2", "lfs": {"oid": SHA, "size": 9}},
    ]
    small, large = read_tree(rows)
    assert small == SourceFile(path="a/config.json", size_bytes=3, etag="d1")
    assert large == SourceFile(path="m.gguf", size_bytes=9, etag=SHA, sha256=SHA)
    with pytest.raises(NotTheHub):
        read_tree({"error": "no"})


@pytest.mark.parametrize(
    ("siblings", "told"),
    [
        ([FILE], True),
        ([{"rfilename": "a", "size": 0}], True),
        ([], True),
        ([{"rfilename": "a"}], False),
        ([FILE, {"rfilename": "a"}], False),
        (None, False),
    ],
)
def test_whether_sizes_are_told(siblings: object, told: bool) -> None:
    assert has_sizes({**PAGE, "siblings": siblings}) is told


@pytest.mark.parametrize(
    ("about", "license", "bases"),
    [
        ({"cardData": {"license": ["mit", "gpl"]}}, "mit", ()),
        ({"tags": ["license:apache-2.0"]}, "apache-2.0", ()),
        ({"tags": ["base_model:quantized:a/b"], "cardData": {"base_model": "c/d"}}, None, ("a/b",)),
        ({"cardData": {"base_model": ["c/d", 5, "e/f"]}}, None, ("c/d", "e/f")),
        ({"cardData": "text", "tags": "license:x"}, "x", ()),
    ],
)
def test_cards(about: Mapping[str, Any], license: str | None, bases: tuple[str, ...]) -> None:
    assert (read_license(about), read_bases(about)) == (license, bases)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"retry-after": "12"}, 12),
        ({"retry-after": "1.5"}, 1),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0),
        ({"ratelimit": '"api";r=0;t=55'}, 55),
        ({"ratelimit": '"api";r=0;t=55', "retry-after": "3"}, 3),
    ],
)
def test_how_long_to_wait(headers: Mapping[str, str], seconds: int) -> None:
    assert parse_wait_s(headers) == seconds


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = (
    "siblings",
    "gated",
    "cardData",
    "tags",
    "safetensors",
    "gguf",
    "pipeline_tag",
    "disabled",
)


@given(st.dictionaries(st.sampled_from((*FIELDS, "id", "sha")), JSON), JSON)
def test_no_answer_is_a_surprise(fields: dict[str, Any], rows: object) -> None:
    for page in (fields, {**PAGE, **fields}, rows):
        has_sizes(page)
        for read in (read_repository, read_files, read_tree, read_listed):
            try:
                read(page)
            except NotTheHub:
                pass
