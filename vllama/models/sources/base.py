"""What a source of models tells: a repository's variants, and the addresses of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllama.base.errors import SourceError
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
