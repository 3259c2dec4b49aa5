"""Room on the disk, files found and written whole, folders left empty."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vllama import private


def get_free_bytes(path: Path) -> int:
    """Return the free space on the file system where `path` is or will be."""
    import shutil

    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def list_files_below(folder: Path) -> Iterator[Path]:
    """Iterate over the files in a folder and the folders below it.

    `Path.rglob` raises FileNotFoundError where a folder is removed while it looks. Here that folder
    has no files, nor has one that may not be read.
    """
    for below, _, names in os.walk(folder):
        yield from (Path(below, name) for name in names)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of our own whole or not at all; raises OSError."""
    private.make_folder(path.parent)
    _write(path, content, path.parent, private.FILE)


def write_shared(path: Path, content: bytes, *, by: Path) -> None:
    """Write a file where other programs look too, by way of the folder `by`; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, content, by, 0o644)


def _write(path: Path, content: bytes, by: Path, mode: int) -> None:
    import tempfile  # not at the top: models are listed without writing anything

    handle, name = tempfile.mkstemp(prefix=".", dir=by)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(mode)
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
