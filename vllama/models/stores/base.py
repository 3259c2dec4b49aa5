"""The protocols of model stores, and the digest that stores give a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from vllama.models.names.ref import ModelRef
from vllama.models.types import Bundle, Removed, Skipped


class Store(Protocol):
    """A place on this disk with models."""

    @property
    def name(self) -> str:
        """The store's name, as in `Bundle.store`."""
        ...

    def list(self) -> list[Bundle]:
        """Return all complete models; none if the place cannot be read."""
        ...

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model with the name `ref`, or None."""
        ...


@runtime_checkable
class RemovingStore(Store, Protocol):
    """A store that vllama may delete from."""

    def remove(self, bundle: Bundle) -> Removed:
        """Delete a model; return its names and the freed bytes."""
        ...


@runtime_checkable
class ForeignStore(Store, Protocol):
    """A store of another program, with models that vllama does not delete."""

    def keeps(self, bundle: Bundle) -> tuple[str, str] | None:
        """Return (why vllama does not delete it, what the user can do); None if vllama may."""
        ...


@runtime_checkable
class SkippingStore(Store, Protocol):
    """A store that may have models which cannot be served, and are not listed."""

    def skipped(self) -> tuple[Skipped, ...]:
        """Return the models that are not listed, with the reasons."""
        ...


@runtime_checkable
class LinkingStore(Store, Protocol):
    """A store of models on other servers, which links of fallback chains name."""

    def find_link(self, text: str) -> Bundle | None:
        """Return the model of a link, None if it is no link to a server that the user named."""
        ...


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
