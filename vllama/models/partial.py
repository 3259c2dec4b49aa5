"""A file that is being fetched in parts: its bytes, its state file, its checksum.

`<blob>.vllama-partial` has the full size from the start, with holes; the state beside it
(`.json`: `{"size", "part_bytes", "done": [bytes of each part]}`) lets a later process go on.
The state is written after the data it tells of. Knows no network; safe for many threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from vllama.errors import ChecksumMismatch

_READ_BYTES = 1024 * 1024


@dataclass(slots=True)
class Part:
    """One range of the file: `done` of its bytes are on disk, from the left."""

    start: int
    size: int
    done: int = 0
    taken: bool = False

    @property
    def position(self) -> int:
        """File offset of the next byte."""
        return self.start + self.done

    @property
    def left(self) -> int:
        """Bytes that are still missing."""
        return self.size - self.done


class Closed(Exception):
    """The partial file was closed while a thread still wanted to write."""


class Partial:
    """The partial file of one blob; use as a context manager under the blob's lock."""

    def __init__(self, blob: Path, *, etag: str, size_bytes: int, part_bytes: int) -> None:
        self._blob, self._etag, self._size = blob, etag, size_bytes
        self._path, self._state = _paths(blob)
        self._lock = threading.Lock()
        self._fd = -1
        self._parts: list[Part] = []
        self._part_bytes = part_bytes
        self._hash, self._hashed = _new_hash(etag, size_bytes), 0

    def __enter__(self) -> Partial:
        saved = _load(self._blob, self._size)
        if saved is not None:
            self._part_bytes, done = saved
            self._parts = _split(self._size, self._part_bytes, done)
        else:
            self._path.unlink(missing_ok=True)
            self._parts = _split(self._size, self._part_bytes, [])
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(self._fd, self._size)
            self.save()
        except OSError:
            os.close(self._fd)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._fd < 0:
                return
            os.close(self._fd)
            self._fd = -1
        if self._path.exists():
            with contextlib.suppress(OSError):  # the disk may be full: an older state will do
                self.save()

    @property
    def done_bytes(self) -> int:
        """Bytes on disk."""
        return sum(part.done for part in self._parts)

    @property
    def missing_parts(self) -> int:
        """Number of parts that lack bytes."""
        return sum(part.left > 0 for part in self._parts)

    def claim(self) -> Part | None:
        """Give the caller the first part that nobody works at; None when there is none."""
        with self._lock:
            for part in self._parts:
                if part.left and not part.taken:
                    part.taken = True
                    return part
        return None

    def restart_whole(self) -> None:
        """Forget all bytes and make the file one part, for servers that cannot send ranges."""
        with self._lock:
            self._part_bytes = max(self._size, 1)
            self._parts = _split(self._size, self._part_bytes, [])
            self._hash, self._hashed = _new_hash(self._etag, self._size), 0

    def write(self, part: Part, data: bytes) -> None:
        """Append to a part what is not too much; raises OSError, and Closed after the end."""
        view = memoryview(data)[: part.left]
        with self._lock:
            if self._fd < 0:
                raise Closed
            while view:
                written = os.pwrite(self._fd, view, part.position)
                part.done += written
                view = view[written:]

    def save(self) -> None:
        """Write the state file; raises OSError."""
        with self._lock:
            state = {
                "size": self._size,
                "part_bytes": self._part_bytes,
                "done": [part.done for part in self._parts],
            }
        temporary = self._state.with_suffix(".tmp")
        temporary.write_text(json.dumps(state))
        temporary.replace(self._state)

    def hash_ahead(self, limit_bytes: int) -> bool:
        """Checksum what has arrived without a gap, so that little is left to do at the end.

        Reads at most `limit_bytes`; returns whether there was anything to read.
        """
        end = min(self._contiguous(), self._hashed + limit_bytes)
        moved = self._hashed < end
        while self._hashed < end:
            data = os.pread(self._fd, min(_READ_BYTES, end - self._hashed), self._hashed)
            if not data:
                raise OSError("the partial file became shorter")
            self._hash.update(data)
            self._hashed += len(data)
        return moved

    def _contiguous(self) -> int:
        reach = 0
        for part in self._parts:
            reach += part.done
            if part.left:
                break
        return reach

    def finish(self, name: str, sha256: str | None) -> None:
        """Verify the checksum and give the blob its name; raises ChecksumMismatch.

        An LFS file's etag is its SHA-256, a git file's the SHA-1 of its git blob. For any other
        etag `sha256` is compared, where the source told one.
        """
        self.hash_ahead(self._size)
        found = self._hash.hexdigest()
        wanted = self._etag if len(self._etag) == 2 * self._hash.digest_size else sha256
        if wanted is not None and found != wanted.lower():
            self.discard()
            raise ChecksumMismatch(
                f"cannot use '{name}' as it came: its {self._hash.name} is {found}, "
                f"announced was {wanted}",
                hint="pull again; if that fails too, the file at the source is damaged",
            )
        os.fsync(self._fd)
        self._path.replace(self._blob)
        self._state.unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete the bytes and the state."""
        self._path.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)


def saved_bytes(blob: Path, size_bytes: int) -> int:
    """Return how many bytes of a blob an unfinished download has on disk."""
    saved = _load(blob, size_bytes)
    return sum(saved[1]) if saved else 0


def _paths(blob: Path) -> tuple[Path, Path]:
    path = blob.with_name(blob.name + ".vllama-partial")
    return path, path.with_name(path.name + ".json")


def _load(blob: Path, size_bytes: int) -> tuple[int, list[int]] | None:
    path, state = _paths(blob)
    try:
        saved = json.loads(state.read_bytes())
        part_bytes, done = int(saved["part_bytes"]), [int(n) for n in saved["done"]]
        if saved["size"] != size_bytes or path.stat().st_size != size_bytes or part_bytes < 1:
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    parts = _split(size_bytes, part_bytes, [])
    fits = len(done) == len(parts) and all(
        0 <= n <= part.size for n, part in zip(done, parts, strict=True)
    )
    return (part_bytes, done) if fits else None


def _split(size_bytes: int, part_bytes: int, done: list[int]) -> list[Part]:
    starts = range(0, size_bytes, part_bytes)
    parts = [Part(start=start, size=min(part_bytes, size_bytes - start)) for start in starts]
    for part, count in zip(parts, done, strict=False):
        part.done = count
    return parts


def _new_hash(etag: str, size_bytes: int) -> hashlib._Hash:
    if len(etag) == 40:  # git: sha1("blob <size>\0" + content)
        return hashlib.sha1(f"blob {size_bytes}\0".encode(), usedforsecurity=False)
    return hashlib.sha256()
