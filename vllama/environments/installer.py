"""The two installers: how each makes an environment and installs into it. Runs nothing itself."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllama.environments.layout import python_of, site_packages

RAW_PROGRESS_PIP = (24, 1)
"""The first pip whose progress can be read by a program (`--progress-bar raw`)."""
RESUMING_PIP = (25, 1)
"""The first pip that goes on with a broken download (`--resume-retries`)."""


def find_uv(search: str | None = None) -> Path | None:
    """Find uv on PATH (or in `search`, written so), or beside the Python that runs us."""
    found = shutil.which("uv", path=search)
    if found:
        return Path(found)
    beside = shutil.which("uv", path=str(Path(sys.executable).parent)) if search is None else None
    return Path(beside) if beside else None


Version = tuple[int, int]


def choose_python(
    lowest: Version, highest: Version, *, uv: Path | None, search: str | None = None
) -> Path | str | None:
    """Return a Python to make an environment of: ours, the newest on PATH, or one for uv to get.

    None if there is none between the two versions.
    """
    if lowest <= sys.version_info[:2] <= highest:
        return Path(sys.executable)
    for minor in range(highest[1], lowest[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}", path=search):
            return Path(found)
    return f"{highest[0]}.{highest[1]}" if uv else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """Command lines of uv, or of venv and pip where `uv` is None."""

    uv: Path | None = None

    @property
    def name(self) -> str:
        """What to call it."""
        return "uv" if self.uv else "pip"

    def can_install(self, folder: Path) -> bool:
        """Tell whether the environment is made as far as this installer needs it."""
        return python_of(folder).exists() and bool(self.uv or _pip_version(folder) > (0,))

    def create(self, folder: Path, python: Path | str) -> list[str]:
        """Make the environment, or mend it: what is there already stays.

        `python` is an interpreter, or, for uv, also a version such as `3.12`.
        """
        if self.uv:
            return [str(self.uv), "venv", "--allow-existing", "--python", str(python), str(folder)]
        return [str(python), "-m", "venv", str(folder)]

    def refresh(self, folder: Path) -> list[str] | None:
        """Bring the installer itself up to date; None if there is no need.

        The pip that comes with Python is often years old: it shows no progress to a program and
        begins a broken download of gigabytes anew.
        """
        if self.uv or _pip_version(folder) >= RESUMING_PIP:
            return None
        return [*self._pip(folder), "install", "--upgrade", "pip"]

    def install(
        self, folder: Path, requirements: Sequence[str], extra_args: Sequence[str]
    ) -> list[str]:
        """Install `requirements`; `extra_args` are for the installer and understood by both."""
        if self.uv:
            argv = [str(self.uv), "pip", "install", "--python", str(python_of(folder))]
        else:
            argv = [*self._pip(folder), "install", "--no-input"]
            version = _pip_version(folder)
            argv += ["--progress-bar", "raw" if version >= RAW_PROGRESS_PIP else "off"]
            argv += ["--resume-retries", "5"] if version >= RESUMING_PIP else []
        return [*argv, *extra_args, "--", *requirements]

    def _pip(self, folder: Path) -> list[str]:
        return [str(python_of(folder)), "-I", "-m", "pip", "--disable-pip-version-check"]


def _pip_version(folder: Path) -> tuple[int, ...]:
    for site in site_packages(folder):
        for info in site.glob("pip-*.dist-info"):
            numbers = re.findall(r"\d+", info.name)
            return tuple(int(number) for number in numbers[:2])
    return (0,)
