"""Files and folders that only their owner may read: logs, names, prompts, uploaded models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

FOLDER, FILE = 0o700, 0o600


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents. Raises OSError.

    An existing folder keeps its mode, because it may be the user's own.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=FOLDER, exist_ok=True)


def restrict(folder: Path) -> bool:
    """Deny other users access to a folder of our own; return whether any had access."""
    try:
        status = folder.stat()
        if status.st_uid != os.getuid() or not status.st_mode & 0o077:
            return False
        folder.chmod(FOLDER)
    except OSError:  # it does not exist, or cannot be changed
        return False
    return True


def create(path: Path) -> BinaryIO:
    """Open an empty private file for writing; an existing file becomes private."""
    file = os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE), "wb"
    )
    os.fchmod(file.fileno(), FILE)
    return file


def replace(path: Path, content: str | bytes) -> None:
    """Replace a file atomically, so that no reader sees half of it. Raises OSError."""
    new = path.with_suffix(".new")
    with create(new) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    new.replace(path)
