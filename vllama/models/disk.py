"""Room on the disk, files written whole, folders left empty."""

from __future__ import annotations

import os
from pathlib import Path


def free_bytes(path: Path) -> int:
    """Return the free space on the file system where `path` is or will be."""
    import shutil

    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def write_whole(path: Path, content: bytes, *, by: Path | None = None) -> None:
    """Write a file whole or not at all, by way of the folder `by`; raises OSError."""
    import tempfile  # not at the top: models are listed without writing anything

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".", dir=by or path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder below `top` and those above it, as far as they are empty."""
    while folder != top and folder.is_relative_to(top):
        try:
            folder.rmdir()
        except OSError:  # not empty
            return
        folder = folder.parent
