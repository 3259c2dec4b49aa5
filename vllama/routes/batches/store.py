"""Files and batches on disk: each a record, with its content beside it.

`ID.json` is the record, `ID.data` the content. Those that a batch writes get their records when it
ends; until then they are its journal (`rows.add_lines`).
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, TypeVar

import msgspec

from vllama.base import private
from vllama.base.errors import BadRequest, Busy, NotFound, VllamaError
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

MAX_FILE_BYTES = 200 * 1000 * 1000
KEYS_SHARE = 4
"""A key may take this part of the whole, and no more."""
LOCKED_S = 5.0
"""Between two looks at a folder that another server has."""
OUTPUT, ERROR = "output", "error"
"""What a batch writes: answers, and what was answered with an error."""


class NoRoom(BadRequest):
    """A file is too large, or others take too much room already."""

    status = 413


class Conflict(VllamaError):
    """What is asked for does not fit the state of a batch."""

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
        self._lock: BinaryIO | None = None
        self.obstacle = ""  # why `open` was refused
        self._files: dict[str, StoredFile] = {}
        self._batches: dict[str, StoredBatch] = {}
        self._writing = threading.Lock()

    def open(self) -> bool:
        """Lock the folder until `close`, and read it; return whether this server has it. Blocks."""
        if self._lock is None:
            try:
                lock = lock_folder(self.folder)
            except BlockingIOError:
                self.obstacle = "another server runs those of this data folder; ask that one"
            except OSError as error:
                self.obstacle = f"cannot write their folder: {error.strerror or error}"
            else:
                self._files = {each.shown.id: each for each in self._read("file-", StoredFile)}
                self._batches = {each.shown.id: each for each in self._read("batch_", StoredBatch)}
                for path in self.folder.glob("new-*"):  # uploads that a kill has ended
                    path.unlink(missing_ok=True)
                self._lock = lock  # now that all is read
        return self._lock is not None

    def check_open(self) -> None:
        """Raise Busy unless this server has the folder."""
        if self._lock is None:
            reason = f"cannot use files and batches: {self.obstacle}"
            raise Busy(reason, retry_after_s=LOCKED_S)

    def close(self) -> None:
        """Let another server have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def begin_file(self) -> Path:
        """Return where to write a new file."""
        return self.folder / f"new-{token_hex(8)}"

    def check_room(self, owner: str, size_bytes: int) -> None:
        """Raise NoRoom if a file of this size cannot be kept."""
        check_size(size_bytes)
        files = list(self._files.values())
        everything = sum(each.shown.bytes for each in files)
        own = sum(each.shown.bytes for each in files if each.owner == owner)
        most_of_owner = self._most // KEYS_SHARE if owner else self._most
        if size_bytes > most_of_owner:
            most = format_bytes_decimal(most_of_owner)
            raise NoRoom(f"the file is too large: {most} at most here")
        if everything + size_bytes > self._most or own + size_bytes > most_of_owner:
            raise NoRoom(
                "cannot keep the file: there are too many others", hint="delete some of them"
            )

    def keep_file(self, new: Path, filename: str, owner: str, kept_s: int = KEPT_S) -> FileObject:
        """Keep a file for a batch, which was written. Raises OSError."""
        identity = make_id("file-")
        new.rename(self.content(identity))
        return self._add_file(identity, filename, PURPOSE, owner, kept_s)

    def _add_file(
        self, identity: str, filename: str, purpose: str, owner: str, kept_s: int
    ) -> FileObject:
        now_s = int(time.time())
        shown = FileObject(
            id=identity,
            bytes=self.content(identity).stat().st_size,
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
                    f"cannot remove {identity}: {each.shown.id} reads it",
                    hint="cancel that batch first",
                )
        self._remove(identity)

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
        return self._add_file(path.stem, name, "batch_output", stored.owner, stored.kept_s).id

    def output(self, batch: str, kind: str) -> Path:
        """Return where a batch writes the lines of a kind: `OUTPUT` or `ERROR`."""
        return self.content(f"file-{batch.removeprefix('batch_')}-{kind}")

    def _read(self, prefix: str, kind: type[Stored]) -> Iterator[Stored]:
        for path in self.folder.glob(f"{prefix}*.json"):
            with suppress(OSError, ValueError):
                yield msgspec.json.decode(path.read_bytes(), type=kind)

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


def lock_folder(folder: Path) -> BinaryIO:
    """Make a folder, and keep other servers from using it; return the file to close after it.

    Raises OSError: BlockingIOError if another server uses it.
    """
    private.make_folder(folder)
    lock = private.create(folder / "lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise
    return lock


def make_id(prefix: str) -> str:
    """Return a new id; later ones sort after earlier ones."""
    return f"{prefix}{time.time_ns() // 1000:014x}{token_hex(5)}"


def check_size(size_bytes: int) -> None:
    """Raise NoRoom for a file that is larger than any may be."""
    if size_bytes > MAX_FILE_BYTES:
        raise NoRoom(f"the file is too large: {format_bytes_decimal(MAX_FILE_BYTES)} at most")
