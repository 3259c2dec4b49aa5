"""The protocol of a source of models: a repository's variants, and the addresses of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vllama.errors import SourceError
from vllama.models.types import SourceFile, Variant


class Transient(SourceError):
    """The source is overloaded or restarting, so a retry may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A model repository at one commit. `hub_id` has the spelling of the source.

    `branch` is the requested revision: a branch, a tag or a commit. `gated` is the kind of access
    control ("auto", "manual"), or None. `variants` are the servable forms among `files`. `license`
    is the name of the licence, `bases` are the repositories that it was made from.
    `parameter_count` is None if the source does not report it, or reports a count of packed
    numbers; `dtypes` are numbers of parameters by type.
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
    """A repository in a list, without sizes and commit; `paths` are the names of its files."""

    hub_id: str
    gated: str | None = None
    disabled: bool = False
    parameter_count: int | None = None
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The current address of a file, which may be signed and expire.

    `headers` are for this address only, because credentials must not be sent to another origin.
    """

    url: str
    etag: str
    size_bytes: int
    commit: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Source(Protocol):
    """A place to download models from. Blocking; raises SourceError and ModelNotFound."""

    def resolve(self, hub_id: str, revision: str | None = None) -> Repository:
        """Fetch the commit of a revision, by default the newest commit, and its variants."""
        ...

    def locate(self, repository: Repository, file: SourceFile) -> Location:
        """Fetch the current address of a file."""
        ...


class Hub(Source, Protocol):
    """A source that can be searched for other forms of a model; raises the same errors."""

    def children(self, hub_id: str, label: str | None = None) -> tuple[Listed, ...]:
        """List the quantisations of `hub_id` (exact case), most downloaded first.

        `label` limits them to repositories with that tag, such as `gguf`.
        """
        ...

    def search(self, text: str, limit: int) -> tuple[str, ...]:
        """List the ids of repositories whose id contains all words of `text`."""
        ...

    def read_json(self, repository: Repository, path: str) -> Mapping[str, object]:
        """Read a small JSON file of a repository; empty if it is missing or not an object."""
        ...

    def check_access(self, repository: Repository) -> None:
        """Raise AuthRequired if the user may not download the files of a gated repository."""
        ...
