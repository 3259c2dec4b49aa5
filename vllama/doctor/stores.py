"""Models on this disk: how many, and those that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllama.doctor.check import Finding, ok, warning
from vllama.errors import VllamaError

if TYPE_CHECKING:
    from vllama.models.library import Library

SHOWN = 5


def models(library: Library) -> Iterator[Finding]:
    """Read the header of every model."""
    here = library.list()
    bad: list[tuple[str, str]] = []
    for bundle in here:
        try:
            library.info(bundle)
        except VllamaError as error:
            bad.append((bundle.name, error.message))
    skipped = [(each.name, each.reason) for each in library.skipped()]
    yield ok(f"{len(here) - len(bad)} models on this disk can be used")
    for name, reason in [*bad, *skipped][:SHOWN]:
        yield warning(f"{name}: {reason}", f"remove it, and pull it again: vllama rm '{name}'")
    if len(bad) + len(skipped) > SHOWN:
        yield warning(f"and {len(bad) + len(skipped) - SHOWN} more")
