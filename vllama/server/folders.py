"""The folders that the server itself writes to, checked before it listens."""

from __future__ import annotations

import tempfile
from pathlib import Path

from vllama import private
from vllama.config import Config
from vllama.errors import ConfigError

WRITTEN = ("log_dir", "run_dir")
"""Settings of folders without which no engine can be started."""
HINT = "name a folder that this user may write to: VLLAMA_DATA_DIR=FOLDER"


def move_unwritable(config: Config) -> tuple[dict[str, Path], str]:
    """Return temporary folders for those that cannot be written to, and the warning about it.

    A read-only root or a user without a home is no reason to serve nobody: logs and the records of
    running engines are then kept in a temporary folder. Raises ConfigError where there is none.
    """
    failed = {name: error for name in WRITTEN if (error := try_to_write(getattr(config, name)))}
    if not failed:
        return {}, ""
    name, error = next(iter(failed.items()))
    problem = f"cannot write to '{getattr(config, name)}': {error.strerror or error}"
    try:
        place = Path(tempfile.mkdtemp(prefix="vllama-"))
    except OSError:
        raise ConfigError(problem, hint=HINT) from None
    warning = f"{problem}; logs of this server are kept in '{place}'; {HINT}"
    return {name: place / name.removesuffix("_dir") for name in failed}, warning


def try_to_write(folder: Path) -> OSError | None:
    """Make a folder if it is missing and a file in it; return why that failed."""
    try:
        private.make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error
