"""Versions of an engine, for `vllama bisect`: which there are, how they come and how they go.

A version is one of a package, which is installed for the search, or a build that is here already.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vllama.base.errors import ConfigError, EnvironmentFailed
from vllama.cli.engine_install import install_with_progress
from vllama.config import environ
from vllama.engines.install import Offer, make_offers
from vllama.engines.registry import find_engine, load_engines
from vllama.machine.detect import detect
from vllama.machine.environments.installer import (
    build_installer_env,
    explain_failure,
    find_uv,
    read_pip_settings,
)
from vllama.machine.environments.layout import find_existing, list_arguments, list_requirements
from vllama.machine.environments.make import remove

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[[^]]*\])?")
VERSION = re.compile(r"[A-Za-z0-9][\w.!+-]*")
INDEX_LIMIT_S = 120.0


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
    offer = make_offers(found, detect(), Path(), compiled=compiled, packages=not compiled)[0]
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


def list_versions(
    package: str,
    environ: Mapping[str, str],
    python: Path | str | None = None,
    *,
    compiled: bool = False,
) -> list[str]:
    """Return the versions of a package, the oldest first, without those before a release.

    Without `compiled` only those that come ready-made for this machine and `python` (default: our
    own). Raises EnvironmentFailed.
    """
    env = build_installer_env(environ, None, read_pip_settings(environ))
    uv = find_uv(env.get("PATH"))
    command = [str(uv), "tool", "run", "--python", str(python or sys.executable), "pip"]
    command += ["index", "versions", "--json", *([] if compiled else ["--only-binary=:all:"])]
    if index := env.get("UV_DEFAULT_INDEX"):  # pip does not read it
        command += ["--index-url", index]
    try:
        done = subprocess.run(
            [*command, package],
            env=env,
            capture_output=True,
            text=True,
            timeout=INDEX_LIMIT_S,
            check=False,
        )
        if done.returncode == 0:
            return [str(one) for one in json.loads(done.stdout)["versions"]][::-1]
        cause, _ = explain_failure(done.stderr.splitlines(), done.returncode)
    except subprocess.TimeoutExpired:
        cause = f"the package index has not answered within {INDEX_LIMIT_S:g} s"
    except (OSError, ValueError, KeyError) as error:
        cause = str(error)
    raise EnvironmentFailed(
        f"cannot list the versions of '{package}': {cause}",
        hint="name those to try, in their order: --versions A,B,C",
    )


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
