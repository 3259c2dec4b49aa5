"""The protocols of model stores, and the digest that stores give a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from vllama.models.ref import ModelRef
from vllama.models.types import Bundle, Removed, Skipped


class Store(Protocol):
    """A place on this disk where models lie."""

    @property
    def name(self) -> str:
        """The store's name, as in `Bundle.store`."""
        ...

    def list(self) -> list[Bundle]:
        """Return every complete model; a place that cannot be read has none."""
        ...

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model that `ref` means, or None."""
        ...


@runtime_checkable
class RemovingStore(Store, Protocol):
    """A store that vllama may delete from."""

    def remove(self, bundle: Bundle) -> Removed:
        """Delete a model and return what came free."""
        ...


@runtime_checkable
class ForeignStore(Store, Protocol):
    """A store of another program, which says why vllama does not delete from it."""

    def keeps(self, bundle: Bundle) -> tuple[str, str] | None:
        """Return (why it is not ours to delete, what the user can do instead), None if it is."""
        ...


@runtime_checkable
class SkippingStore(Store, Protocol):
    """A store that may hold models it leaves out."""

    def skipped(self) -> tuple[Skipped, ...]:
        """Return them with the reasons."""
        ...


def compute_digest(lines: Iterable[tuple[str, str, int]]) -> str:
    """Return the SHA-256 of a canonical text of (file name, identity, size) lines.

    The identity is a checksum where the store knows one, so that equal models have equal
    digests; reading gigabytes for it would make listing slow.
    """
    text = "".join(f"{name}\t{identity}\t{size}\n" for name, identity, size in sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()


def sum_real_sizes(paths: Iterable[Path]) -> int:
    """Return the bytes of the files behind `paths`, links followed, each file once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in paths:
        status = path.stat()
        sizes[(status.st_dev, status.st_ino)] = status.st_size
    return sum(sizes.values())
