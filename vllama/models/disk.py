"""The disk: free space, finding files, atomic writes, removing empty folders, storages of blobs."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from vllama.base import private
from vllama.base.errors import VllamaError
from vllama.models.lookup import rest_on


def get_free_bytes(path: Path) -> int:
    """Return the free space on the file system where `path` is or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


RESERVE_BYTES = 256 * 1024 * 1024  # stays free on a disk, of a small one a tenth


def find_room(folder: Path) -> int:
    """Return how many bytes may still be written to the disk of a folder. Raises OSError."""
    usage = shutil.disk_usage(folder)
    return usage.free - min(RESERVE_BYTES, usage.total // 10)


def list_files_below(
    folder: Path, tell: Callable[[OSError], object] | None = None
) -> Iterator[Path]:
    """Iterate over the files in a folder and the folders below it.

    `Path.rglob` raises FileNotFoundError if a folder is removed meanwhile. Here such a folder has
    no files, and neither has one that may not be read; `tell` gets the error.
    """

    def note(error: OSError) -> None:
        rest_on(Path(error.filename))
        if tell is not None:
            tell(error)

    rest_on(folder)
    for below, _, names in os.walk(folder, onerror=note):
        rest_on(Path(below))
        yield from (Path(below, name) for name in names)


def is_file(path: Path) -> bool:
    """Tell whether there is a file; `Path.is_file` raises where a folder may not be entered."""
    rest_on(path)
    return os.path.isfile(path)  # noqa: PTH113


LOCK_LIMIT_S = 30.0


@contextlib.contextmanager
def lock_data(lock: Path, task: str) -> Iterator[None]:
    """Keep out others that change the same files of vllama's own.

    Raises VllamaError, "cannot <task>", for what the disk refuses; inside the block too.
    """
    try:
        with private.lock_file(lock, LOCK_LIMIT_S):
            yield
    except OSError as error:
        raise VllamaError(
            f"cannot {task}: {error.strerror}",
            hint="set VLLAMA_DATA_DIR to a writable folder",
        ) from error


WRITING_S = 600.0
"""A file that is not written to for so long has lost its writer."""


def remove_older(paths: Iterable[Path], age_s: float = WRITING_S) -> None:
    """Delete the files that have not changed for so long: their writers were killed."""
    for path in paths:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > age_s:
                path.unlink()


def write_shared(path: Path, content: bytes, *, by: Path) -> None:
    """Write a file that other programs read too, atomically, through the folder `by`.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    private.replace(path, content, by=by, mode=0o644, sync=True)


def remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder below `top` and its parents, as far as they are empty."""
    while folder != top and folder.is_relative_to(top):
        try:
            folder.rmdir()
        except OSError:  # not empty
            return
        folder = folder.parent


def list_model_files(*paths: Path | None) -> tuple[Path, ...]:
    """Return the files of models that are one file, or a folder of files; itself if missing."""
    found: list[Path] = []
    rest_on(*filter(None, paths))
    for path in paths:
        if path is not None and path.is_dir():
            found += sorted(filter(is_file, path.iterdir()))
        elif path:
            found.append(path)
    return tuple(found)


class BlobStorage(ABC):
    """A place on this disk where files lie by their etag: the hub's cache, Ollama's store."""

    folder: Path
    """The folder of all such files."""
    variable: str
    """Name of the environment variable with which users move `folder`."""

    @abstractmethod
    def blob(self, etag: str) -> Path:
        """Return the path of the content with this etag, whether it is there or not."""

    @abstractmethod
    def partial(self, etag: str) -> Path:
        """Return the path of an unfinished download: on the same file system as the blob."""

    @abstractmethod
    def lock(self, etag: str) -> Path:
        """Return the lock file of a blob: of the hub's the one that huggingface_hub takes too."""

    def has_blob(self, etag: str, size_bytes: int) -> bool:
        """Tell whether a blob is complete (it only gets its name when it is)."""
        try:
            found = self.blob(etag).stat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == size_bytes
