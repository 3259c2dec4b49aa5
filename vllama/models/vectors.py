"""Steering vectors with names: one file each below the data folder, by the digest of their model.

A vector means something for the weights that it was made with and for no others, so it is found
only for a model with the same digest. Who may write into the data folder may add one; requests can
only use them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllama.base import private
from vllama.base.errors import BadModelFile, BadRequest
from vllama.chat.inspect import pack_vector
from vllama.models.headers.safetensors import (
    FLOATS,
    TensorEntry,
    read_floats,
    read_header,
    read_tensor,
    write_tensor,
)
from vllama.models.types import Bundle

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_TENSOR = "vector"
SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A vector as it is listed; `size` is its number of numbers."""

    model: str
    name: str
    size: int
    path: Path


class VectorStore:
    """The vectors of all models, in one folder."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "vectors"

    def add(self, bundle: Bundle, width: int, name: str, source: Path) -> Vector:
        """Keep the only tensor of a safetensors file; one of that name is replaced.

        Raises BadRequest for a wrong name or number of numbers, BadModelFile, OSError.
        """
        if not _NAME.fullmatch(name):
            raise BadRequest(
                f"cannot name a vector '{name}'", hint="use letters, digits, dots, - and _"
            )
        entries, _ = read_header(source)
        if len(entries) != 1:
            raise BadRequest(
                f"cannot take a vector from '{source}': it has {len(entries)} tensors",
                hint="write a file with that one vector",
            )
        (entry,) = entries.values()
        packed = pack_vector(_read_numbers(source, entry), width, bundle.name)
        path = self._place(bundle) / f"{name}{SUFFIX}"
        private.make_folder(path.parent)
        about = {"model": bundle.name, "digest": bundle.digest}
        private.replace(path, write_tensor(_TENSOR, "F32", (width,), packed, about))
        return Vector(model=bundle.name, name=name, size=width, path=path)

    def list(self) -> list[Vector]:
        """Return all vectors, by model and name; files that cannot be read are left out."""
        found = (_describe(path) for path in self._folder.glob(f"*/*{SUFFIX}"))
        return sorted(filter(None, found), key=lambda each: (each.model, each.name))

    def remove(self, bundle: Bundle, name: str) -> None:
        """Remove a vector of a model. Raises BadRequest if there is none of that name."""
        self._find(bundle, name).unlink()

    def read(self, bundle: Bundle, name: str) -> bytes:
        """Return a vector in float32. Raises BadRequest if the model has none of that name."""
        path = self._find(bundle, name)
        try:
            return read_tensor(path, read_header(path)[0][_TENSOR])
        except (OSError, KeyError, BadModelFile):
            raise BadRequest(
                f"cannot use the vector '{name}': its file is damaged",
                hint=f"add it again: vllama vectors add {bundle.name} {name} FILE",
            ) from None

    def _place(self, bundle: Bundle) -> Path:
        return self._folder / bundle.digest[:16]

    def _find(self, bundle: Bundle, name: str) -> Path:
        path = self._place(bundle) / f"{name}{SUFFIX}"
        if _NAME.fullmatch(name) and path.is_file():
            return path
        others = [each for each in self.list() if each.name == name]
        own = ", ".join(sorted(each.stem for each in self._place(bundle).glob(f"*{SUFFIX}")))
        reason = f"it belongs to {others[0].model}" if others else "there is none of that name"
        raise BadRequest(
            f"cannot use the vector '{name}' with {bundle.name}: {reason}",
            hint=f"this model has: {own}" if own else "see those there are: vllama vectors ls",
        )


def _describe(path: Path) -> Vector | None:
    try:
        entries, about = read_header(path)
        size = entries[_TENSOR].shape[0]
    except (OSError, KeyError, IndexError, BadModelFile):
        return None
    return Vector(model=str(about.get("model", "")), name=path.stem, size=size, path=path)


def _read_numbers(path: Path, entry: TensorEntry) -> Sequence[float]:
    """Return the numbers of a tensor with one dimension. Raises BadRequest, OSError."""
    long = [length for length in entry.shape if length != 1]
    if len(long) > 1 or entry.dtype not in FLOATS:
        raise BadRequest(
            f"cannot take a vector from '{path}': its tensor is {entry.dtype} of the shape "
            f"{entry.shape}",
            hint=f"write one row of {', '.join(FLOATS)}",
        )
    return read_floats(entry.dtype, read_tensor(path, entry))
