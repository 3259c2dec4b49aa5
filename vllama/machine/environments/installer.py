"""uv's command lines: make an environment, install into it. Runs nothing itself."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import uv

from vllama.base.errors import EnvironmentFailed
from vllama.machine.environments.layout import get_python

Version = tuple[int, int]


def find_uv(search: str | None = None) -> Path:
    """Return the user's own uv, if it is on PATH (or in `search`), else the one vllama depends on.

    Raises EnvironmentFailed if there is neither.
    """
    if found := shutil.which("uv", path=search):
        return Path(found)
    try:
        return Path(uv.find_uv_bin())
    except FileNotFoundError:
        raise EnvironmentFailed(
            "cannot install: uv is missing", hint="run: pip install uv"
        ) from None


def choose_python(lowest: Version, highest: Version, *, search: str | None = None) -> Path | str:
    """Return a Python: ours, the newest on PATH, or a version for uv to get."""
    if lowest <= sys.version_info[:2] <= highest:
        return Path(sys.executable)
    for minor in range(highest[1], lowest[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}", path=search):
            return Path(found)
    return f"{highest[0]}.{highest[1]}"


def venv_command(uv_path: Path, folder: Path, python: Path | str) -> list[str]:
    """Return the command that makes an environment, or mends it: what is there already stays.

    `python` is an interpreter or a version such as `3.12`.
    """
    return [str(uv_path), "venv", "--allow-existing", "--python", str(python), str(folder)]


def install_command(
    uv_path: Path, folder: Path, requirements: Sequence[str], extra_args: Sequence[str]
) -> list[str]:
    """Return the command that installs `requirements` into an environment."""
    command = [str(uv_path), "pip", "install", "--python", str(get_python(folder))]
    return [*command, *extra_args, "--", *requirements]
