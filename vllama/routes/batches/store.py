"""Files and batches on disk: each a record, with its content beside it.

`ID.json` is the record, `ID.data` the content. Those that a batch writes get their records when it
ends; until then they are its journal (`rows.add_lines`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vllama.base import private
from vllama.base.errors import BadRequest, Busy, LimitReached, NotFound, VllamaError
from vllama.base.left_out import read_each
from vllama.base.units import format_bytes_decimal
from vllama.dialects.openai.batch_types import (
    KEPT_S,
    OVER,
    PURPOSE,
    Batch,
    BatchStatus,
    FileObject,
    RowError,
    RowErrors,
)
from vllama.models.disk import find_room

if TYPE_CHECKING:
    from filelock import FileLock

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 200 * 1000 * 1000
KEYS_SHARE = 4
"""A key may take this part of the whole, and no more."""
MOST_FILES, MOST_BATCHES, MOST_RUNNING = 10_000, 1000, 100
"""Of one key; of more batches, the oldest that have ended are removed with their answers."""
LOCKED_S = 5.0
"""Between two looks at a folder that another server has."""
OUTPUT, ERROR = "output", "error"
"""What a batch writes: answers, and what was answered with an error."""


class NoRoom(BadRequest):
    """A file is too large, or others take too much room already."""

    status = 413


class Conflict(VllamaError):
    """A request does not fit the state of a batch."""

    status = 409


class StoredFile(msgspec.Struct):
    """A file, and whose it is: "" on a server without keys."""

    owner: str
    shown: FileObject


class StoredBatch(msgspec.Struct):
    """A batch, whose it is, the name of the key that its rows are counted for, and how long its
    files are kept in seconds.
    """

    owner: str
    key_name: str
    shown: Batch
    kept_s: int = KEPT_S


Stored = TypeVar("Stored", StoredFile, StoredBatch)


class BatchStore:
    """The files and batches of one server, which has the folder for itself.

    The records are in memory, too, so that finding and listing them blocks nobody; what writes or
    removes blocks.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """`most_bytes` of all files together."""
        self.folder = folder
        self._most = most_bytes
        self._lock: FileLock | None = None
        self.obstacle = ""  # why `open` was refused
        self._files: dict[str, StoredFile] = {}
        self._batches: dict[str, StoredBatch] = {}
        self._uploads: dict[Path, tuple[str, int]] = {}  # owner and bytes
        self._writing = threading.Lock()

    def open(self) -> bool:
        """Lock the folder until `close`, and read it; return whether this server has it. Blocks.

        A folder that was removed meanwhile is made again.
        """
        from filelock import FileLock, Timeout  # keeps the start of the server fast

        if self._lock is not None and not self.folder.exists():
            log.warning("batch folder '%s' was removed; creating a new one", self.folder)
            self.close()
        if self._lock is None:
            lock = FileLock(self.folder / "lock", mode=private.FILE, thread_local=False)
            try:
                private.make_folder(self.folder)
                lock.acquire(timeout=0)
            except Timeout:
                self.obstacle = "another server uses this data folder; send batches to that server"
            except OSError as error:
                self.obstacle = f"cannot write to the batch folder: {error.strerror or error}"
            else:
                self._files = {each.shown.id: each for each in self._read("file-", StoredFile)}
                self._batches = {each.shown.id: each for each in self._read("batch_", StoredBatch)}
                for path in self.folder.glob("*new*"):  # what a kill has kept from its end
                    with suppress(OSError):
                        path.unlink()
                self._lock = lock  # now that all is read
        return self._lock is not None

    def check_open(self) -> None:
        """Raise Busy unless this server has the folder."""
        if self._lock is None or not (self.folder.exists() or self.open()):
            reason = f"cannot use files and batches: {self.obstacle}"
            raise Busy(reason, retry_after_s=LOCKED_S)

    def close(self) -> None:
        """Let another server have the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def begin_file(self) -> Path:
        """Return where to write a new file."""
        return self.folder / f"new-{token_hex(8)}"

    def reserve(self, new: Path, owner: str, size_bytes: int) -> None:
        """Count an upload to `new` as a file of this size, until `release`. Raises NoRoom."""
        with self._writing:
            self.check_room(owner, size_bytes, new)
            self._uploads[new] = owner, size_bytes

    def release(self, new: Path) -> None:
        """Remove what an upload has left, and count it no longer."""
        new.unlink(missing_ok=True)
        self._uploads.pop(new, None)

    def check_room(self, owner: str, size_bytes: int, new: Path | None = None) -> None:
        """Raise NoRoom if a file of this size cannot be kept beside the others and the uploads."""
        uploads = [each for path, each in list(self._uploads.items()) if path != new]
        sizes = [(each.owner, each.shown.bytes) for each in list(self._files.values())] + uploads
        everything = sum(size for _, size in sizes)
        owns = [size for whose, size in sizes if whose == owner]
        most_of_owner = self._most // KEYS_SHARE if owner else self._most
        if size_bytes > (most_of_one := min(MAX_FILE_BYTES, most_of_owner)):
            raise NoRoom(f"the file is too large: the limit is {format_bytes_decimal(most_of_one)}")
        is_full = everything + size_bytes > self._most or sum(owns) + size_bytes > most_of_owner
        if is_full or len(owns) >= MOST_FILES:
            raise NoRoom(
                "cannot store the file: the storage limit is reached", hint="delete some files"
            )
        if size_bytes + sum(size for _, size in uploads) > find_room(self.folder):
            raise NoRoom("cannot store the file: the disk is full", hint="free some space")

    def keep_file(self, new: Path, filename: str, owner: str, kept_s: int = KEPT_S) -> FileObject:
        """Keep a file for a batch, which was written. Raises OSError."""
        identity = make_id("file-")
        shown = self._add_file(identity, new, filename, PURPOSE, owner, kept_s)
        new.rename(self.content(identity))
        return shown

    def _add_file(
        self, identity: str, path: Path, filename: str, purpose: str, owner: str, kept_s: int
    ) -> FileObject:
        now_s = int(time.time())
        shown = FileObject(
            id=identity,
            bytes=path.stat().st_size,
            created_at=now_s,
            expires_at=now_s + kept_s,
            filename=filename[:200],
            purpose=purpose,
        )
        stored = StoredFile(owner, shown)
        self._write(identity, stored)
        self._files[identity] = stored
        return shown

    def content(self, identity: str) -> Path:
        """Return where the content of a file is."""
        return self.folder / f"{identity}.data"

    def find_file(self, identity: str, owner: str) -> FileObject:
        """Return a file. Raises NotFound, also if it is another owner's."""
        return _find(self._files, identity, owner, "file").shown

    def list_files(self, owner: str, purpose: str = "") -> list[FileObject]:
        """Return the files of an owner, the newest first."""
        found = [each.shown for each in list(self._files.values()) if each.owner == owner]
        chosen = [each for each in found if purpose in ("", each.purpose)]
        return sorted(chosen, key=lambda each: (each.created_at, each.id), reverse=True)

    def delete_file(self, identity: str, owner: str) -> None:
        """Remove a file. Raises NotFound, and Conflict while a batch reads it."""
        self.find_file(identity, owner)
        for each in self.list_batches():
            if each.shown.input_file_id == identity and each.shown.status not in OVER:
                raise Conflict(
                    f"cannot remove {identity}: {each.shown.id} is using it",
                    hint="cancel that batch first",
                )
        self._remove(identity)

    def add_batch(self, stored: StoredBatch) -> None:
        """Write a new batch; the oldest make room. Raises LimitReached, OSError."""
        own = [each.shown for each in self.list_batches() if each.owner == stored.owner]
        if sum(each.status not in OVER for each in own) >= MOST_RUNNING:
            reason = f"cannot add a batch: {MOST_RUNNING} batches are still running"
            raise LimitReached(reason, retry_after_s=60.0, hint="wait, or cancel some of them")
        for old in own[MOST_BATCHES - 1 :]:
            if old.status in OVER:
                for identity in filter(None, (old.output_file_id, old.error_file_id, old.id)):
                    self._remove(identity)
        self.save_batch(stored)

    def save_batch(self, stored: StoredBatch) -> None:
        """Write the state of a batch. Raises OSError."""
        self._write(stored.shown.id, stored)
        self._batches[stored.shown.id] = stored

    def find_batch(self, identity: str, owner: str) -> StoredBatch:
        """Return a batch. Raises NotFound, also if it is another owner's."""
        return _find(self._batches, identity, owner, "batch")

    def list_batches(self) -> list[StoredBatch]:
        """Return the batches of all owners, the newest first."""
        found = list(self._batches.values())
        return sorted(found, key=lambda x: (x.shown.created_at, x.shown.id), reverse=True)

    def expire(self) -> None:
        """Remove files whose time is over, and batches as old that have ended."""
        now_s = time.time()
        batches = self.list_batches()
        read = {each.shown.input_file_id for each in batches if each.shown.status not in OVER}
        for file in list(self._files.values()):
            if file.shown.expires_at <= now_s and file.shown.id not in read:
                self._remove(file.shown.id)
        for batch in batches:
            if batch.shown.created_at + KEPT_S <= now_s and batch.shown.status in OVER:
                self._remove(batch.shown.id)

    def finish(self, stored: StoredBatch, status: BatchStatus, errors: list[RowError]) -> None:
        """Make files of what a batch has written, and save its last state. Raises OSError.

        After a kill in between this is done again, and no row: the lines tell which have ended.
        """
        shown = stored.shown
        shown.output_file_id = self._keep_output(stored, OUTPUT)
        shown.error_file_id = self._keep_output(stored, ERROR)
        shown.errors = RowErrors(data=errors) if errors else None
        shown.finalizing_at = int(time.time())
        shown.enter(status)
        self.save_batch(stored)

    def _keep_output(self, stored: StoredBatch, kind: str) -> str | None:
        """Make a file of the lines of a batch; return its id, None if there are none."""
        batch = stored.shown.id
        path = self.output(batch, kind)
        if not path.exists() or not path.stat().st_size:
            return None
        name = f"{batch}_{kind}.jsonl"
        fields = path, name, "batch_output", stored.owner, stored.kept_s
        return self._add_file(path.stem, *fields).id

    def output(self, batch: str, kind: str) -> Path:
        """Return where a batch writes the lines of a kind: `OUTPUT` or `ERROR`."""
        return self.content(f"file-{batch.removeprefix('batch_')}-{kind}")

    def _read(self, prefix: str, kind: type[Stored]) -> Iterator[Stored]:
        paths = self.folder.glob(f"{prefix}*.json")
        return read_each(paths, lambda path: msgspec.json.decode(path.read_bytes(), type=kind))

    def _write(self, identity: str, stored: StoredFile | StoredBatch) -> None:
        with self._writing:  # so that the newer state is written last
            private.replace(self.folder / f"{identity}.json", msgspec.json.encode(stored))

    def _remove(self, identity: str) -> None:
        self._files.pop(identity, None)
        self._batches.pop(identity, None)
        for path in self.folder.glob(f"{identity}.*"):
            path.unlink(missing_ok=True)


def _find(known: Mapping[str, Stored], identity: str, owner: str, word: str) -> Stored:
    found = known.get(identity)
    if found is None or found.owner != owner:
        raise NotFound(f"No such {word}: {identity[:80]}")
    return found


def make_id(prefix: str) -> str:
    """Return a new id; later ones sort after earlier ones."""
    return f"{prefix}{time.time_ns() // 1000:014x}{token_hex(5)}"
