"""Facts of GGUF headers that decide what the files in a folder are: models, parts, projectors."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from vllama.base.errors import BadModelFile
from vllama.models.lookup import rest_on, sign
from vllama.models.names.variants import GgufFacts, Look

_TO_MODEL = ("mm.", "resampler.", "adapter.")
"""Tensors between the encoder and the model (llama.cpp's tools/mtmd/clip-impl.h, `TN_MM_…`)."""


def look_below(folder: Path) -> Look:
    """Return a function that reads the facts of the files below a folder."""
    return lambda path: _look(folder / path)


def _look(path: Path) -> GgufFacts | None:
    rest_on(path)
    try:
        return _read_facts(path, sign(path))
    except (OSError, BadModelFile):  # its name is all that is known
        return None


@lru_cache(maxsize=1024)
def _read_facts(path: Path, _: object) -> GgufFacts:
    """Read a header once for each state of the file. Raises BadModelFile."""
    from vllama.models.headers.gguf.header import read_header  # most folders need none

    header = read_header(path)
    meta = header.metadata
    width = meta.get(f"{meta.get('general.architecture')}.embedding_length")
    ends = (tensor.shape for tensor in header.tensors if tensor.name.startswith(_TO_MODEL))
    return GgufFacts(
        is_model=meta.get("general.type", "model") == "model" and bool(header.tensors),
        is_part=meta.get("split.count", 1) not in (0, 1),
        width=width if isinstance(width, int) else None,
        widths=frozenset(side for shape in ends for side in shape),
    )
