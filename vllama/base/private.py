"""Files and folders that only their owner may read: logs, names, prompts, uploaded models."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
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
    """Open a new private file for writing, in place of an existing one. Raises OSError.

    So it is neither a link nor a file that another user holds open.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        return os.fdopen(os.open(path.name, flags, FILE, dir_fd=folder), "wb")
    finally:
        os.close(folder)


def open_file(path: Path) -> BinaryIO:
    """Open a file of our own for reading; a FIFO would block. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def replace(
    path: Path, data: str | bytes, *, by: Path | None = None, mode: int = FILE, sync: bool = False
) -> None:
    """Replace a file atomically, so that no reader ever sees half of it. Raises OSError.

    It is written in the folder `by` of the same file system, else in its own, which is made if it
    is missing. `sync`: wait for the disk.
    """
    new = (by or path.parent) / f".{os.getpid()}-{threading.get_ident()}.new"
    make_folder(new.parent)
    try:
        with create(new) as file:
            file.write(data.encode() if isinstance(data, str) else data)
            os.fchmod(file.fileno(), mode)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def lock_file(path: Path, limit_s: float, mode: int = FILE) -> Iterator[None]:
    """Keep out other threads and processes that lock the same file, which stays; make its folder.

    Raises OSError, a BlockingIOError after `limit_s`.
    """
    from filelock import FileLock, Timeout  # keeps the start of the server fast

    make_folder(path.parent)
    lock = FileLock(path, timeout=limit_s, mode=mode)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(errno.EAGAIN, "another program is using it", str(path)) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep out others that lock the same folder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
