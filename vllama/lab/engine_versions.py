"""Versions of an engine, for `vllama bisect`: which there are, how they come and how they go.

A version is one of a package, which is installed for the search, or a build that is here already.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllama.base.errors import ConfigError
from vllama.cli.engine_install import install_with_progress
from vllama.config import environ
from vllama.engines.install import Offer, make_offer
from vllama.engines.registry import find_engine, load_engines
from vllama.engines.versions import find_package_name, list_versions, pin_version, split_version
from vllama.machine.detect import detect
from vllama.machine.environments.layout import find_existing, list_arguments, list_requirements
from vllama.machine.environments.make import remove


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of an engine.

    `title` is shown, `name` is what the user would type. `setting` is the one by which a server
    uses it. `offer` installs it; None: it is here.
    """

    name: str
    title: str
    setting: str
    offer: Offer | None = None


def list_trial_versions(
    engine: str | None,
    good: str | None,
    bad: str | None,
    named: Sequence[str],
    *,
    scratch: Path,
    compiled: bool,
) -> list[Version]:
    """Return the versions from the good one to the bad one; those of a package go to `scratch`.

    Raises ConfigError and EnvironmentFailed.
    """
    ends = [one for one in (good, *named, bad) if one]
    if any(os.sep in one for one in ends):
        return list_builds(engine, list(dict.fromkeys(ends)))
    offer = find_offer(engine, compiled=compiled)
    package = find_package_name(offer, split_version(good or "")[0] or split_version(bad or "")[0])
    versions = []
    for name in list_candidates(offer, package, good, bad, named):
        pinned = pin_version(offer, package, name, scratch)
        setting = f"{offer.engine.name}={pinned.folder}"
        versions.append(
            Version(name=name, title=f"{package} {name}", setting=setting, offer=pinned)
        )
    return versions


def list_builds(engine: str | None, paths: Sequence[str]) -> list[Version]:
    """Return builds that are here, from good to bad, by the paths of their programs or folders.

    Raises ConfigError.
    """
    if engine is None:
        raise ConfigError("cannot bisect builds: no engine is named", hint="name it: --engine")
    found = find_engine(load_engines().values(), engine)
    for path in paths:
        if not Path(path).exists():
            raise ConfigError(
                f"cannot bisect: there is no '{path}'",
                hint="name programs or folders of the engine, or versions of its package",
            )
    if len(paths) < 2:
        raise ConfigError("cannot bisect builds: both ends are the same")
    return [
        Version(name=path, title=path, setting=f"{found.name}={Path(path).absolute()}")
        for path in paths
    ]


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
    known = known or list_versions(package, environ(), offer.python, compiled=offer.wheels.compiled)
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


def install_version(version: Version) -> None:
    """Install a version unless it is here already. Raises VllamaError."""
    offer = version.offer
    if offer is None:
        return
    wanted = list_requirements(offer.steps), list_arguments(offer.steps)
    if find_existing(offer.folder, *wanted) is None:
        install_with_progress(offer)


def remove_versions(scratch: Path, versions: Sequence[Version]) -> None:
    """Remove the installed versions; folders that hold anything else stay."""
    for offer in (one.offer for one in versions if one.offer is not None):
        remove(offer.folder)
        for left in offer.folder.parent.glob(".*.lock"):
            left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            offer.folder.parent.rmdir()
    with contextlib.suppress(OSError):
        scratch.rmdir()
