"""Files and folders that only their owner may read: logs, names, prompts, uploaded models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

FOLDER, FILE = 0o700, 0o600


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing; raises OSError.

    An existing one keeps its mode: it may be the user's own.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=FOLDER, exist_ok=True)


def close(folder: Path) -> bool:
    """Close a folder of our own to all other users; tell whether it was open to any."""
    try:
        status = folder.stat()
        if status.st_uid != os.getuid() or not status.st_mode & 0o077:
            return False
        folder.chmod(FOLDER)
    except OSError:  # it does not exist, or cannot be changed
        return False
    return True


def create(path: Path) -> BinaryIO:
    """Open a file for writing from its beginning, whatever its mode was before."""
    file = os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE), "wb"
    )
    os.fchmod(file.fileno(), FILE)
    return file


def replace(path: Path, content: str) -> None:
    """Write a file by way of a new one, so that nobody reads half of it; raises OSError."""
    new = path.with_suffix(".new")
    with create(new) as file:
        file.write(content.encode())
    new.replace(path)
