"""The protocol of a source of models: a repository's variants, and the addresses of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vllama.errors import SourceError
from vllama.models.types import SourceFile, Variant


class Transient(SourceError):
    """The source is overloaded or restarting: another try soon may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A model repository at one commit. `hub_id` is in the source's own spelling.

    `branch` is the revision that was asked for: a branch, a tag or a commit.
    `gated` is what has to be done before the files may be fetched ("auto", "manual"), or None.
    `variants` are what can be served of `files`. `license` is the licence's name, `bases` the
    repositories that it was made from. `parameter_count` is None where the source does not tell
    it, or tells the count of packed numbers; `dtypes` are numbers of parameters by type.
    """

    hub_id: str
    commit: str
    branch: str = "main"
    gated: str | None = None
    variants: tuple[Variant, ...] = ()
    files: tuple[SourceFile, ...] = ()
    license: str | None = None
    bases: tuple[str, ...] = ()
    pipeline: str | None = None
    parameter_count: int | None = None
    dtypes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A repository in a list: without sizes and commit. `paths` are its files' names."""

    hub_id: str
    gated: str | None = None
    disabled: bool = False
    parameter_count: int | None = None
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The current address of a file's bytes; it may be signed and expire.

    `headers` are for that address only (credentials never go to another origin).
    """

    url: str
    etag: str
    size_bytes: int
    commit: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Source(Protocol):
    """A place to fetch models from. Blocking; errors are `SourceError`s or `ModelNotFound`."""

    def resolve(self, hub_id: str, revision: str | None = None) -> Repository:
        """Ask for the commit of a revision, by default the newest one, and its variants."""
        ...

    def locate(self, repository: Repository, file: SourceFile) -> Location:
        """Ask where the bytes of one file are."""
        ...


class Hub(Source, Protocol):
    """A source that can be searched for other forms of a model. The same errors."""

    def children(self, hub_id: str, label: str | None = None) -> tuple[Listed, ...]:
        """List what says that it was quantised from `hub_id` (exact case), most loaded first.

        `label` narrows it to repositories with that tag, such as `gguf`.
        """
        ...

    def search(self, text: str, limit: int) -> tuple[str, ...]:
        """List the ids of repositories that have all words of `text` in their id."""
        ...

    def read_json(self, repository: Repository, path: str) -> Mapping[str, object]:
        """Read a small JSON file of a repository; empty if it is absent or holds no object."""
        ...

    def check_access(self, repository: Repository) -> None:
        """Raise AuthRequired if the files of a gated repository may not be fetched."""
        ...
