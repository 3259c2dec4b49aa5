"""The folder that a conversion works in: on the disk of its result, and gone afterwards.

A lock inside tells a working one from what a killed program has left; the next one sweeps those.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from vllama import private
from vllama.errors import DiskFull, VllamaError
from vllama.models.disk import free_bytes
from vllama.units import format_bytes_decimal

PREFIX = ".convert-"
_LOCK = "lock"
_READ_BYTES = 8 * 1024 * 1024
RESERVE_BYTES = 256 * 1024 * 1024


@contextlib.contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """Make a folder below `parent` to work in; remove it with all that is still in it.

    Raises VllamaError, DiskFull for what the disk refuses, inside the block too.
    """
    try:
        private.make_folder(parent)
        sweep(parent)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            with FileLock(folder / _LOCK):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        text = f"cannot write '{error.filename or parent}': {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(text, hint="remove models with vllama rm") from error
        raise VllamaError(text, hint="check the folder's owner and rights") from error


def sweep(parent: Path) -> None:
    """Remove what conversions that were killed have left."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            with FileLock(folder / _LOCK, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
        except (Timeout, OSError):
            continue


def check_room(
    folder: Path, need_bytes: int, what: str, free_space: Callable[[Path], int] = free_bytes
) -> None:
    """Raise DiskFull if `need_bytes` more do not fit where `folder` is or will be."""
    free = free_space(folder)
    if need_bytes + RESERVE_BYTES > free:
        raise DiskFull(
            f"cannot {what}: it needs about {format_bytes_decimal(need_bytes)} for a while, "
            f"and {format_bytes_decimal(free)} are free at {folder}",
            hint="remove models with vllama rm, or name a file on a larger disk with --output",
        )


def settle(file: Path) -> str:
    """Bring a file's bytes to the disk; return their SHA-256, 64 hex digits. Raises OSError."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while data := content.read(_READ_BYTES):
            digest.update(data)
        os.fsync(content.fileno())
    return digest.hexdigest()
