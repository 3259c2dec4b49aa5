"""What a store of models is, and the digest that stores give a model."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vllama.base.errors import VllamaError
from vllama.models.names.ref import ModelRef
from vllama.models.types import Bundle, Skipped


class Store(ABC):
    """A place with models, on this disk unless it `is_elsewhere`."""

    name: str
    """As in `Bundle.store`."""
    is_elsewhere = False

    @abstractmethod
    def list(self) -> list[Bundle]:
        """Return all complete models; none if the place cannot be read."""

    @abstractmethod
    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model with the name `ref`, or None."""

    def find_link(self, text: str) -> Bundle | None:
        """Return the model of a link to a server that the user named, None if it is none."""
        return None

    def skipped(self) -> tuple[Skipped, ...]:
        """Return the models that cannot be served and are not listed, with the reasons."""
        return ()

    def keeps(self, bundle: Bundle) -> tuple[str, str] | None:
        """Return (why vllama does not delete a model, what the user can do); None if it does."""
        return None


class RemovingStore(Store):
    """A store that vllama may delete from."""

    @abstractmethod
    def remove(self, bundle: Bundle) -> int:
        """Delete a model; return the freed bytes. Raises VllamaError."""


@contextmanager
def map_removal_errors(bundle: Bundle, hint: str | None = None) -> Iterator[None]:
    """Turn what the disk refuses during a removal into a VllamaError."""
    try:
        yield
    except OSError as error:
        text = f"cannot remove '{bundle.name}': {error.strerror or error}"
        raise VllamaError(text, hint=hint) from error


def keep_first(bundles: Iterable[Bundle]) -> list[Bundle]:
    """Return models; of several with one name the first."""
    found: dict[str, Bundle] = {}
    for bundle in bundles:
        found.setdefault(bundle.name, bundle)
    return list(found.values())


def compute_digest(lines: Iterable[tuple[str, str, int]]) -> str:
    """Return the SHA-256 of a canonical text of (file name, identity, size) lines.

    The identity is a checksum if the store knows one, so that equal models have equal digests.
    Computing checksums would make listing slow, since it would read gigabytes.
    """
    text = "".join(f"{name}\t{identity}\t{size}\n" for name, identity, size in sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()


def sum_real_sizes(paths: Iterable[Path]) -> int:
    """Return the sum of the sizes of the files, following links and counting each file once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in paths:
        status = path.stat()
        sizes[(status.st_dev, status.st_ino)] = status.st_size
    return sum(sizes.values())
