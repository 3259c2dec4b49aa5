"""Files, uploaded or of paths, by their checksum: `<data_dir>/blobs/sha256-<64 hex digits>`.

The layout and the messages are Ollama's. A file gets its final name only when it is complete and
its checksum is correct. Blocking; safe for use by many threads and processes.

See docs/reference/ollama-api.md#model-management, #store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

from vllama.base import private
from vllama.base.errors import BadRequest, DiskFull, VllamaError
from vllama.base.units import format_bytes_decimal
from vllama.models.disk import RESERVE_BYTES, get_free_bytes, remove_older
from vllama.models.types import Progress, PullEvent

ORPHAN_S = 3600.0
"""How long an unreferenced blob is kept, because its model may be created soon."""
FICLONE = 0x40049409  # linux/fs.h
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")


class BlobStore:
    """The uploaded files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Return the path of the blob `sha256:…`, whether or not it exists. Raises BadRequest."""
        match = _DIGEST.fullmatch(digest)
        if match is None:
            raise BadRequest("invalid digest format")
        return self.folder / f"sha256-{match[1].lower()}"

    def has(self, digest: str) -> bool:
        """Return whether the blob exists, and restart its `ORPHAN_S`. Raises BadRequest."""
        try:
            os.utime(self.path(digest))
        except OSError:
            return False
        return True

    def writer(self, digest: str, size_bytes: int | None) -> BlobWriter:
        """Start an upload with the announced size. Raises BadRequest, DiskFull."""
        path = self.path(digest)
        self._check_room(size_bytes or 0)
        try:
            private.make_folder(self.folder)
            self.sweep()
            return BlobWriter(path, digest, self._check_room)
        except OSError as error:
            raise _make_write_error(path, error) from error

    def bring(self, source: Path, tell: Progress, *, link: bool = False) -> Path:
        """Store a file by its checksum, as a reflink, copy, or hard `link`; return its place.

        That is its own if it cannot be linked. Raises BadRequest, DiskFull, OSError.
        """
        with source.open("rb") as file:
            tell(PullEvent(status=f"reading {source.name}"))
            content = hashlib.file_digest(file, "sha256")
            path = self.folder / f"sha256-{content.hexdigest()}"
            if self.has(path.name):
                return path
            writer = self.writer(path.name, None)
            try:
                if not writer.share(file, content, link=link):
                    if link:
                        return source
                    self._check_room(file.seek(0, os.SEEK_END))
                    tell(PullEvent(status=f"copying {source.name}"))
                    file.seek(0)
                    shutil.copyfileobj(file, writer)
                writer.finish()
            finally:
                writer.discard()
        return path

    def prune(self, used: Collection[Path], doomed: Collection[Path] = ()) -> int:
        """Delete `doomed` and old blobs that are not `used`; return the freed bytes."""
        freed = 0
        for path in self.folder.glob("sha256-*"):
            if path in used:
                continue
            with contextlib.suppress(OSError):
                status = path.stat()
                if path in doomed or time.time() - status.st_mtime > ORPHAN_S:
                    path.unlink()
                    freed += status.st_size if status.st_nlink == 1 else 0
        return freed

    def _check_room(self, wanted_bytes: int) -> None:
        free = get_free_bytes(self.folder)
        if wanted_bytes + RESERVE_BYTES > free:
            needs = f"{format_bytes_decimal(wanted_bytes)} is" if wanted_bytes else "more is"
            raise DiskFull(
                f"cannot store the file: {needs} needed and "
                f"{format_bytes_decimal(free)} is free at {self.folder}",
                hint="remove a model: vllama rm NAME",
            )

    def sweep(self) -> None:
        """Delete unfinished uploads of a server that was killed."""
        remove_older(self.folder.glob(".upload-*"))


class BlobWriter:
    """One upload: `write` the parts, then `finish`. `discard` always, even after `finish`."""

    def __init__(self, path: Path, digest: str, check_room: Callable[[int], None]) -> None:
        import tempfile  # slow to import, and needed only for uploads

        self._path = path
        self._digest = digest  # as the client wrote it
        self._check_room = check_room
        self._hash = hashlib.sha256()
        handle, name = tempfile.mkstemp(prefix=".upload-", dir=path.parent)
        self._file = os.fdopen(handle, "wb", buffering=0)
        self._temporary = Path(name)

    def write(self, data: bytes) -> None:
        """Append a part. Raises DiskFull."""
        self._check_room(0)  # the announced size may be missing, and others write, too
        self._hash.update(data)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise _make_write_error(self._path, error) from error

    def share(self, file: BinaryIO, content: hashlib._Hash, *, link: bool) -> bool:
        """Use the blocks of a file with this checksum; False if the file system cannot."""
        with contextlib.suppress(OSError):
            if link:
                self._temporary.unlink()
                self._temporary.hardlink_to(Path(file.name).resolve())
            else:
                fcntl.ioctl(self._file, FICLONE, file.fileno())
            self._hash = content
            return True
        return False

    def finish(self) -> None:
        """Verify the checksum and give the file its name. Raises BadRequest."""
        actual = self._hash.hexdigest()
        if self._path.name != f"sha256-{actual}":
            raise BadRequest(f'digest mismatch, expected "{self._digest}", got "sha256:{actual}"')
        try:
            self._file.close()
            self._temporary.replace(self._path)
        except OSError as error:
            raise _make_write_error(self._path, error) from error

    def discard(self) -> None:
        """Delete the temporary file unless the upload was finished."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


def _make_write_error(path: Path, error: OSError) -> VllamaError:
    text = f"cannot write '{path}': {error.strerror or error}"
    return DiskFull(text) if error.errno == errno.ENOSPC else VllamaError(text)
