"""A file that is being fetched in parts: its bytes, its state file, its checksum.

The partial file has its full size from the start, with holes. The state file beside it (`.json`:
`{"size", "part_bytes", "done": [bytes of each part]}`) lets a later process continue. Its numbers
have a fixed width and are overwritten in place, through a memory map, after each piece of data.
So a kill loses nothing that had arrived, and recording a piece costs no system call.

Knows no network; safe for many threads.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from vllama.base.errors import ChecksumMismatch

_READ_BYTES = 256 * 1024  # fits into a processor's cache
_WIDTH = 16


@dataclass(slots=True)
class Range:
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


class FileClosed(Exception):
    """The partial file was closed while a thread still wanted to write to it."""


class PartialFile:
    """The partial file at `path`; use as a context manager under the blob's lock."""

    def __init__(self, path: Path, *, etag: str, size_bytes: int, part_bytes: int) -> None:
        self._etag, self._size = etag, size_bytes
        self._path, self._state = path, _state(path)
        self._lock = threading.Lock()
        self._fd = -1
        self._counts: mmap.mmap | None = None
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._parts: list[Range] = []
        self._counts_at = 0
        self._part_bytes = part_bytes
        self._hash, self._hashed = _new_hash(etag, size_bytes), 0

    def __enter__(self) -> PartialFile:
        saved = _load(self._path, self._size)
        if saved is not None:
            self._part_bytes, done = saved
            self._parts = _split(self._size, self._part_bytes, done)
        else:
            self._path.unlink(missing_ok=True)
            self._parts = _split(self._size, self._part_bytes, [])
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(self._fd, self._size)
            self._write_state()
        except OSError:
            os.close(self._fd)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            if self._counts is not None:
                self._counts.close()
            self._fd, self._counts = -1, None

    @property
    def done_bytes(self) -> int:
        """Bytes on disk."""
        return sum(part.done for part in self._parts)

    @property
    def missing_parts(self) -> int:
        """Number of parts that lack bytes."""
        return sum(part.left > 0 for part in self._parts)

    def claim(self) -> Range | None:
        """Return the first incomplete part that no worker has claimed; None if there is none.

        The first one: the checksum follows the bytes without a gap.
        """
        with self._lock:
            for part in self._parts:
                if part.left and not part.taken:
                    part.taken = True
                    return part
        return None

    def restart_whole(self) -> None:
        """Discard all bytes and make the file one part, for servers that cannot send ranges."""
        with self._lock:
            self._part_bytes = max(self._size, 1)
            self._parts = _split(self._size, self._part_bytes, [])
            self._hash, self._hashed = _new_hash(self._etag, self._size), 0
            self._write_state()

    def write(self, part: Range, data: bytes) -> None:
        """Append to a part, at most to its end. Raises OSError, and FileClosed after `__exit__`."""
        view = memoryview(data)[: part.left]
        with self._lock:
            if self._fd < 0:
                raise FileClosed
            while view:
                written = os.pwrite(self._fd, view, part.position)
                part.done += written
                view = view[written:]
            at = self._counts_at + part.start // self._part_bytes * (_WIDTH + 1)
            assert self._counts is not None  # set as long as the file is open
            self._counts[at : at + _WIDTH] = _count(part.done)

    def _write_state(self) -> None:
        """Write the state file and map it into memory. Raises OSError."""
        head = f'{{"size": {self._size}, "part_bytes": {self._part_bytes}, "done": ['.encode()
        counts = b",".join(_count(part.done) for part in self._parts)
        temporary = self._state.with_suffix(".tmp")
        temporary.write_bytes(head + counts + b"]}")
        temporary.replace(self._state)
        self._counts_at = len(head)
        if self._counts is not None:
            self._counts.close()
        with self._state.open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), 0)

    def hash_ahead(self, limit_bytes: int) -> bool:
        """Hash what has arrived without a gap, so that little is left to do at the end.

        Reads at most `limit_bytes`; returns whether there was anything to read.
        """
        end = min(self._contiguous(), self._hashed + limit_bytes)
        moved = self._hashed < end
        while self._hashed < end:
            room = self._buffer[: end - self._hashed]
            count = os.preadv(self._fd, [room], self._hashed)
            if not count:
                raise OSError("the partial file became shorter")
            self._hash.update(room[:count])
            self._hashed += count
        return moved

    def _contiguous(self) -> int:
        reach = 0
        for part in self._parts:
            reach += part.done
            if part.left:
                break
        return reach

    def finish(self, blob: Path, name: str, sha256: str | None) -> None:
        """Verify the checksum and make the file `blob`; raises ChecksumMismatch.

        An LFS file's etag is its SHA-256, a git file's is the SHA-1 of its git blob. With any other
        etag the hash is compared with `sha256`, if the source named one.
        """
        self.hash_ahead(self._size)
        found = self._hash.hexdigest()
        wanted = self._etag if len(self._etag) == 2 * self._hash.digest_size else sha256
        if wanted is not None and found != wanted.lower():
            self.discard()
            raise ChecksumMismatch(
                f"cannot use the downloaded '{name}': its {self._hash.name} is {found}, expected "
                f"{wanted}",
                hint="pull again; if that fails too, the source file is damaged",
            )
        os.fsync(self._fd)
        self._path.replace(blob)
        self._state.unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete the bytes and the state."""
        self._path.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)


def count_saved_bytes(path: Path, size_bytes: int) -> int:
    """Return how many bytes of a file an unfinished download has in the partial file `path`."""
    saved = _load(path, size_bytes)
    return sum(saved[1]) if saved else 0


def _state(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _count(done: int) -> bytes:
    return f"{done:{_WIDTH}}".encode()


def _load(path: Path, size_bytes: int) -> tuple[int, list[int]] | None:
    try:
        saved = json.loads(_state(path).read_bytes())
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


def _split(size_bytes: int, part_bytes: int, done: list[int]) -> list[Range]:
    starts = range(0, size_bytes, part_bytes)
    parts = [Range(start=start, size=min(part_bytes, size_bytes - start)) for start in starts]
    for part, count in zip(parts, done, strict=False):
        part.done = count
    return parts


def _new_hash(etag: str, size_bytes: int) -> hashlib._Hash:
    if len(etag) == 40:  # git: sha1("blob <size>\0" + content)
        return hashlib.sha1(f"blob {size_bytes}\0".encode(), usedforsecurity=False)
    return hashlib.sha256()
