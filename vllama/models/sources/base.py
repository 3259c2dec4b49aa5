"""What a source of models must offer: a repository's variants, and where a file's bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vllama.errors import SourceError
from vllama.models.types import SourceFile, Variant


class Transient(SourceError):
    """The source is overloaded or restarting: asking again soon may go well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A model repository at one commit. `hub_id` is in the source's own spelling.

    `gated` is what has to be done before the files may be fetched ("auto", "manual"), or None.
    """

    hub_id: str
    commit: str
    branch: str = "main"
    gated: str | None = None
    variants: tuple[Variant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a file's bytes are right now; the address may be signed and expire.

    `headers` are for that address only (credentials never go to another origin).
    """

    url: str
    etag: str
    size_bytes: int
    commit: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Source(Protocol):
    """A place to fetch models from. Blocking; errors are `SourceError`s or `ModelNotFound`."""

    def resolve(self, hub_id: str) -> Repository:
        """Ask for a repository's newest commit and its variants."""
        ...

    def locate(self, repository: Repository, file: SourceFile) -> Location:
        """Ask where the bytes of one file are."""
        ...
