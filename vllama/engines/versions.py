"""One version of an engine, in an environment of its own beside others of the same engine."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from vllama.base.errors import ConfigError
from vllama.engines.install import Offer

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[[^]]*\])?")

VERSION = re.compile(r"[A-Za-z0-9][\w.!+-]*")


def split_version(text: str) -> tuple[str, str]:
    """Split `package==version`, or a version alone, into package (or "") and version."""
    package, _, version = text.strip().rpartition("==")
    return package.strip(), version.strip()


def find_package_name(offer: Offer, named: str = "") -> str:
    """Return which package of an offer has the engine: the named one, else the first.

    Raises ConfigError if the offer does not install the named one.
    """
    matches = (REQUIREMENT.match(one) for step in offer.steps for one in step.requirements)
    names = [found["name"] for found in matches if found]
    if not named:
        return names[0]
    for name in names:
        if _normalise(name) == _normalise(named):
            return name
    raise ConfigError(
        f"cannot take versions of '{named}': {offer.engine.title} is not installed from it",
        hint=f"choose one of {', '.join(names)}",
    )


def pin_version(offer: Offer, package: str, version: str, folder: Path) -> Offer:
    """Return the offer to install one version of `package` below `folder`. Raises ConfigError."""
    if not VERSION.fullmatch(version):  # it becomes the name of a folder
        raise ConfigError(f"cannot install {package} '{version}': that is no version")
    steps = tuple(
        replace(step, requirements=tuple(_pin(one, package, version) for one in step.requirements))
        for step in offer.wheels.steps
    )
    return replace(
        offer,
        folder=folder / version / offer.engine.name,
        wheels=replace(offer.wheels, steps=steps),
        done=False,
    )


def _pin(requirement: str, package: str, version: str) -> str:
    found = REQUIREMENT.match(requirement)
    if found is None or _normalise(found["name"]) != _normalise(package):
        return requirement
    return f"{found['name']}{found['extras'] or ''}=={version}"


def _normalise(name: str) -> str:
    """Return a package's name as the index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
