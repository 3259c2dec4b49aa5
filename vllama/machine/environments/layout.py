"""Layout of an environment, and the marker of a complete one.

Every start of the server reads this, so it imports little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllama.base import private

MARKER = "vllama-environment.json"
"""Written last: an environment without it is not complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of `uv pip install`, with further arguments for it; or the name of a build."""

    requirements: tuple[str, ...]
    extra_args: tuple[str, ...] = ()


def get_python(folder: Path) -> Path:
    """Return where an environment has its Python."""
    return folder / "bin" / "python"


def name_version(environments: Path, name: str, version: str) -> Path:
    """Return the folder of one version of an engine, beside the usual one."""
    return environments / f"{name}@{version}"


def find_chosen(environments: Path, name: str) -> Path:
    """Return the folder of the environment in use: that of a chosen version, or the usual one."""
    link = environments / f"{name}.chosen"
    return link.resolve() if find_existing(link) else environments / name


def choose(folder: Path) -> None:
    """Use an environment from now on, of a version or the usual one. Raises OSError."""
    name, at, _ = folder.name.partition("@")
    link = folder.with_name(f"{name}.chosen")
    link.unlink(missing_ok=True)
    if at:
        link.symlink_to(folder.name)


def list_site_packages(folder: Path) -> list[Path]:
    """Return where an environment has its packages; nothing if it is not there."""
    return sorted(folder.glob("lib/python3*/site-packages"))


def find_version(folder: Path) -> tuple[int, int] | None:
    """Return the version of an environment's Python, None if there is no environment."""
    for site in list_site_packages(folder):
        if found := re.fullmatch(r"python(\d+)\.(\d+)", site.parent.name):
            return int(found[1]), int(found[2])
    return None


def find_existing(
    folder: Path,
    requirements: Sequence[str] | None = None,
    arguments: Sequence[str] | None = None,
) -> Path | None:
    """Return the folder of a complete environment's programs.

    If they are given, only one that was made with exactly these requirements (and arguments).
    """
    try:
        marker = json.loads((folder / MARKER).read_text())
        made_for, made_with = marker["requirements"], marker["arguments"]
        programs = marker.get("programs")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if requirements is not None and made_for != list(requirements):
        return None
    if arguments is not None and made_with != list(arguments):
        return None
    if programs is not None:
        return folder / programs if (folder / programs).is_dir() else None
    python = get_python(folder)
    return python.parent if python.exists() else None


def mark_complete(folder: Path, steps: Sequence[Step], *, programs: Path | None = None) -> None:
    """Mark an environment as complete. Raises OSError.

    `programs`: the folder of its programs, if it is no environment of Python's.
    """
    marker: dict[str, object] = {
        "requirements": list_requirements(steps),
        "arguments": list_arguments(steps),
    }
    if programs is not None:
        marker["programs"] = str(programs.relative_to(folder))
    private.replace(folder / MARKER, json.dumps(marker), mode=0o644)


def list_requirements(steps: Sequence[Step]) -> list[str]:
    """Return the packages of all steps."""
    return [item for step in steps for item in step.requirements]


def list_arguments(steps: Sequence[Step]) -> list[str]:
    """Return the further arguments of all steps."""
    return [item for step in steps for item in step.extra_args]
