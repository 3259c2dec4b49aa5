"""Files and folders that only their owner may read: logs, names, prompts, uploaded models.

What root makes in the folder of another user, such as that of a service, belongs to that user.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
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
    """Open an empty private file for writing; an existing file becomes private."""
    file = os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE), "wb"
    )
    os.fchmod(file.fileno(), FILE)
    os.fchown(file.fileno(), *find_owner(path.parent))
    return file


def open_file(path: Path) -> BinaryIO:
    """Open a file of our own for reading; a FIFO would block. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def replace(path: Path, content: str | bytes) -> None:
    """Replace a file atomically, so that no reader sees half of it. Raises OSError."""
    new = path.with_suffix(".new")
    with create(new) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    new.replace(path)


def write_through(folder: Path, path: Path, content: bytes, mode: int) -> None:
    """Write a file of any mode atomically, through a file of its own in `folder`. Raises OSError.

    `folder` is on the same file system.
    """
    handle, name = tempfile.mkstemp(prefix=".", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def create_unique(folder: Path, prefix: str, suffix: str, text: str) -> Path:
    """Write a text into a new private file, whose name no other has. Raises OSError."""
    descriptor, name = tempfile.mkstemp(suffix, prefix, folder)
    os.close(descriptor)
    with create(Path(name)) as file:
        file.write(text.encode())
    return Path(name)


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
        raise BlockingIOError(errno.EAGAIN, "another program holds it", str(path)) from None
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


def find_owner(folder: Path) -> tuple[int, int]:
    """Return to which user and group belongs what is made in a folder; -1: to who makes it."""
    if os.geteuid() != 0:
        return -1, -1
    status = folder.stat()
    return status.st_uid, status.st_gid


def give_to_owner(folder: Path) -> None:
    """Give to the owner of a folder what root has made in it. Follows no links. Raises OSError."""
    owner = find_owner(folder)
    if owner[0] <= 0:
        return
    # a folder after what is in it: until then nobody else can replace anything there
    for _, folders, files, place in os.fwalk(folder.resolve(), topdown=False):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=place, follow_symlinks=False)
                if status.st_uid == 0 and (status.st_nlink == 1 or stat.S_ISDIR(status.st_mode)):
                    os.chown(name, *owner, dir_fd=place, follow_symlinks=False)
