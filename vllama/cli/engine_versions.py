"""Versions of an engine, for `vllama bisect`: which there are, how they come and how they go."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from vllama.cli.engine_install import install_with_progress
from vllama.engines.install import Offer, make_offer
from vllama.engines.registry import find_engine, load_engines
from vllama.engines.versions import split_version
from vllama.environments.index import list_versions
from vllama.environments.layout import find_existing, list_arguments, list_requirements
from vllama.environments.make import remove
from vllama.errors import ConfigError
from vllama.hardware.detect import detect


def find_offer(engine: str | None, *, compiled: bool) -> Offer:
    """Return how an engine is installed here. Raises ConfigError if that would compile unasked."""
    if engine is None:
        raise ConfigError("cannot bisect versions: no engine is named", hint="name it: --engine")
    found = find_engine(load_engines().values(), engine)
    offer = make_offer(found, detect(), Path(), compiled=compiled)
    if offer.wheels.compiled and not compiled:
        raise ConfigError(
            f"cannot bisect {found.title} by its versions: each would be compiled "
            f"({offer.wheels.note or 'which takes minutes'})",
            hint="if that may be, say so: --compile",
        )
    return offer


def list_candidates(
    offer: Offer, package: str, good: str | None, bad: str | None, named: Sequence[str]
) -> Sequence[str]:
    """Return the versions from the good one to the bad one, of the `named` ones or of the index.

    Raises ConfigError if one of the ends is not among them, and EnvironmentFailed.
    """
    known = [split_version(one)[1] for one in named]
    good = split_version(good or (known[0] if known else ""))[1]
    bad = split_version(bad or (known[-1] if known else ""))[1]
    known = known or list_versions(package, python=offer.python, compiled=offer.wheels.compiled)
    for version in (good, bad):
        if version not in known:
            raise ConfigError(
                f"cannot bisect: there is no {package} {version} for this machine",
                hint=f"there are {', '.join(known[-8:])}" if known else None,
            )
    first, last = known.index(good), known.index(bad)
    if first == last:
        raise ConfigError("cannot bisect versions: both ends are the same")
    return known[first : last + 1] if first < last else known[last : first + 1][::-1]


def install_version(offer: Offer) -> None:
    """Install a version unless it is there already. Raises VllamaError."""
    wanted = list_requirements(offer.steps), list_arguments(offer.steps)
    if find_existing(offer.folder, *wanted) is None:
        install_with_progress(offer)


def remove_versions(scratch: Path, offers: Sequence[Offer]) -> None:
    """Remove the installed versions; folders that hold anything else stay."""
    for offer in offers:
        remove(offer.folder)
        for left in offer.folder.parent.glob(".*.lock"):
            left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            offer.folder.parent.rmdir()
    with contextlib.suppress(OSError):
        scratch.rmdir()
