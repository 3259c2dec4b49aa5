"""The versions of an engine: those on the package index, and one in an environment of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vllama.base.errors import ConfigError, EnvironmentFailed
from vllama.engines.install import Offer
from vllama.machine.environments.failures import find_cause
from vllama.machine.environments.installer import build_installer_env, find_uv, read_pip_settings

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


LIMIT_S = 120.0


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
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode == 0:
            return [str(one) for one in json.loads(done.stdout)["versions"]][::-1]
        cause = find_cause(done.stderr.splitlines(), done.returncode).cause
    except subprocess.TimeoutExpired:
        cause = f"the package index has not answered within {LIMIT_S:g} s"
    except (OSError, ValueError, KeyError) as error:
        cause = str(error)
    raise EnvironmentFailed(
        f"cannot list the versions of '{package}': {cause}",
        hint="name those to try, in their order: --versions A,B,C",
    )
