"""What is shown of a model, the same for `vllama show`, the REPL and `/api/show`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import INFO
from vllama.models.shown import describe_model
from vllama.models.types import Bundle, Format

MODEL = Bundle(
    name="m:latest", store="folder", format=Format.GGUF, path=Path("/m.gguf"),
    files=(Path("/m.gguf"),), size_bytes=1, digest="", modified_s=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("modelfile", "header", "shown"),
    [("MIT", "apache-2.0", "MIT"), (None, "apache-2.0", "apache-2.0"), (None, None, None)],
)
def test_the_license_is_that_of_the_modelfile_else_of_the_header(
    modelfile: str | None, header: str | None, shown: str | None
) -> None:
    described = describe_model(
        replace(MODEL, license=modelfile), replace(INFO, license=header), verbose=False
    )
    assert described.get("license") == shown
