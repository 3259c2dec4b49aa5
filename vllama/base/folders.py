"""Folders of the platform for vllama's files, and the folders of other programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

APP = "vllama"
OLLAMA_SERVICE_DIR = Path("/usr/share/ollama/.ollama/models")
"""Where Ollama keeps models when its installer has made it a service of Linux."""


def default_config_dir() -> Path:
    """Return where the platform wants programs to keep their settings."""
    place = _plain("XDG_CONFIG_HOME", ".config")
    if place is not None:
        return place
    import platformdirs

    return platformdirs.user_config_path(APP, appauthor=False)


def default_data_dir() -> Path:
    """Return where the platform wants programs to keep their data."""
    place = _plain("XDG_DATA_HOME", ".local/share")
    if place is not None:
        return place
    import platformdirs

    return platformdirs.user_data_path(APP, appauthor=False)


def _plain(variable: str, usual: str) -> Path | None:
    """Return a folder by freedesktop's XDG Base Directory rules; None where they are not all.

    `platformdirs` says the same, but is as slow to import as all settings are to read.
    """
    if not sys.platform.startswith("linux"):
        return None
    chosen, home = os.environ.get(variable, ""), os.environ.get("HOME", "")
    if chosen.startswith("/"):  # XDG ignores relative paths
        return Path(chosen) / APP
    return Path(home) / usual / APP if home.startswith("/") else None


def default_hf_home() -> Path:
    """Return where huggingface_hub keeps its cache and token."""
    return Path.home() / ".cache" / "huggingface"


def default_models_dir() -> Path:
    """Return where Ollama keeps a user's models."""
    return Path.home() / ".ollama" / "models"


def default_lmstudio_dirs() -> tuple[Path, ...]:
    """Return where LM Studio keeps models: the home folder that it notes, today's, the old one."""
    homes: list[Path] = []
    try:
        noted = (Path.home() / ".lmstudio-home-pointer").read_text().strip()
        homes += [Path(noted)] if noted else []
    except (OSError, UnicodeDecodeError):
        pass
    homes += [Path.home() / ".lmstudio", Path.home() / ".cache" / "lm-studio"]
    return tuple(dict.fromkeys(home / "models" for home in homes))


def keys_file(data_dir: Path) -> Path:
    """Return where the named keys are; the file may not exist."""
    return data_dir / "keys.json"
