"""The files of saved conversations: one that the engine has written, and our record beside it.

The engine checks little: a file that is one byte short ends it, and another quantization of the
model is accepted (docs/reference/engines.md#llama-server). So a file is only used with the size and
the hash of its record. All methods block: they are called in a thread, one at a time.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import msgspec
from filelock import FileLock, Timeout

from vllama.base import private
from vllama.base.errors import ConfigError, VllamaError
from vllama.base.units import format_bytes_decimal
from vllama.scheduler.slot_cache.blocks import trim_blocks

log = logging.getLogger(__name__)

BLOCK_CHARS = 256
LARGEST_SHARE = 4
"""A file may take this part of the whole, and no more."""
LEAST_FREE = 0.1
"""Of the disk: nothing is written with less."""
DAY_S = 86400
MOST_WRITTEN = 50 * 1000**3
"""Bytes in a day, which spares the disk: 4,000 tokens of an 8B model are half a gigabyte."""
DATA, RECORD, NEW = ".slot", ".json", "new-"


class Saved(msgspec.Struct, kw_only=True):
    """A saved conversation.

    `key` stands for the model's files, the engine and the form of its cache; `owner` for the API
    key that had the conversation, "" without keys, and `key_name` is its name. `blocks` are hashes
    of the text up to each `BLOCK_CHARS` characters. Times are in Unix seconds.
    """

    name: str
    key: str
    model: str
    owner: str
    key_name: str
    blocks: tuple[str, ...]
    tokens: int
    size_bytes: int = 0
    content_hash: str = ""
    saved_at: float = 0.0
    used_at: float = 0.0
    hits: int = 0


class StoreFull(VllamaError):
    """A conversation cannot be saved; the text is the reason."""


class _Written(msgspec.Struct):
    """The bytes that were written on a day; days are counted from 1970."""

    day: int = 0
    size_bytes: int = 0


def hash_blocks(text: str) -> tuple[str, ...]:
    """Return a hash of the text up to the end of each whole block."""
    running, found = hashlib.blake2b(digest_size=8), []
    for start in range(0, len(text) - BLOCK_CHARS + 1, BLOCK_CHARS):
        running.update(text[start : start + BLOCK_CHARS].encode(errors="surrogatepass"))
        found.append(running.hexdigest())
    return tuple(found)


def count_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many blocks two texts have in common from their beginning."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


class SlotStore:
    """All saved conversations of one server, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        now_s: Callable[[], float],
        most_written: int = MOST_WRITTEN,
    ) -> None:
        """`most_bytes` bounds the files, `most_written` what is written in a day."""
        self.folder = folder
        self._most_bytes, self._most_written, self._now_s = most_bytes, most_written, now_s
        self._saved: dict[str, Saved] = {}
        self._reserved: dict[str, tuple[str, int]] = {}  # model and bytes by the name of a file
        self._shares: dict[str, int] = {}  # the bounds that models have of their own
        self._blocks = Counter[str]()  # bytes of each model that engines keep by themselves
        self._written = _Written()
        self._guard = threading.RLock()
        self._lock = FileLock(folder / "lock", mode=private.FILE)

    def open(self) -> None:
        """Read the records; remove what belongs to none. Raises ConfigError, OSError."""
        private.make_folder(self.folder)
        self.folder.chmod(private.FOLDER)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"cannot store conversations in '{self.folder}': another server uses it",
                hint="omit --cache-disk, or set another data_dir",
            ) from None
        self._saved = {each.name: each for each in read_records(self.folder)}
        self._make_room(0, None)
        self.trim_blocks()
        free = shutil.disk_usage(self.folder).free
        if free + self.size_bytes + self._blocks.total() < self._most_bytes:
            self._lock.release()
            raise ConfigError(
                f"cannot store {format_bytes_decimal(self._most_bytes)} of conversations: "
                f"{format_bytes_decimal(free)} is free at '{self.folder}'",
                hint="set a smaller --cache-disk",
            )
        with suppress(OSError, ValueError, RecursionError):
            self._written = msgspec.json.decode(self._written_file.read_bytes(), type=_Written)
        for path in self.folder.glob(f"*{DATA}"):
            if path.name.startswith(NEW) or path.stem not in self._saved:
                _unlink(path)

    def close(self) -> None:
        """Let another server use the folder."""
        self._lock.release()

    def set_share(self, model: str, most_bytes: int | None) -> None:
        """Bound what is kept of a model; None: only all together are bounded."""
        self._shares.pop(model, None)
        if most_bytes is not None:
            self._shares[model] = most_bytes

    @property
    def size_bytes(self) -> int:
        """The bytes that the files take, with those that are being written."""
        return self._count(None)

    def _count(self, model: str | None) -> int:
        """Return the bytes of a model's files, or of all."""
        kept = [(each.model, each.size_bytes) for each in self._saved.values()]
        return sum(
            size for of, size in (*kept, *self._reserved.values()) if model is None or of == model
        )

    def summarise(self, model: str) -> tuple[int, int, int]:
        """Return how much is kept of a model: conversations, bytes, how often one was restored.

        Does not block: the loop asks, and a thread may hold the guard until the disk has written.
        """
        found = [each for each in tuple(self._saved.values()) if each.model == model]
        size_bytes = sum(each.size_bytes for each in found) + self._blocks[model]
        return len(found), size_bytes, sum(each.hits for each in found)

    @property
    def _written_file(self) -> Path:
        return self.folder / "written"

    def find(self, key: str, owner: str, blocks: Sequence[str]) -> tuple[Saved, int] | None:
        """Return the conversation with most blocks of a text, and how many that are."""
        with self._guard:
            found = [
                (count_common(each.blocks, blocks), each.used_at, each)
                for each in self._saved.values()
                if each.key == key and each.owner == owner and each.blocks[:1] == blocks[:1]
            ]
        common, _, best = max(found, key=lambda row: row[:2], default=(0, 0.0, None))
        return (best, common) if best is not None and common else None

    def begin(self, estimate_bytes: int, model: str) -> str:
        """Reserve room for a file of a model; return the name to write. Raises StoreFull, OSError.

        Conversations of the least value, by age and size, are removed for it.
        """
        size = format_bytes_decimal(estimate_bytes)
        with self._guard:
            total, free = self._measure_disk()
            if free - estimate_bytes < LEAST_FREE * total:
                raise StoreFull("less than a tenth of the disk would be free")
            most_bytes = min(self._most_bytes, self._shares.get(model, self._most_bytes))
            if estimate_bytes * LARGEST_SHARE > most_bytes:
                bound = format_bytes_decimal(most_bytes)
                raise StoreFull(f"its size is {size}, more than a quarter of {bound}")
            if self._written.day != (day := int(self._now_s() // DAY_S)):
                self._written = _Written(day=day)
            if self._written.size_bytes + estimate_bytes > self._most_written:
                bound = format_bytes_decimal(self._most_written)
                raise StoreFull(f"with its {size}, today's writes would exceed {bound}")
            if not self._make_room(estimate_bytes, model):
                raise StoreFull("other conversations are being saved")
            name = f"{NEW}{token_hex(8)}{DATA}"
            self._reserved[name] = model, estimate_bytes
            return name

    def abandon(self, name: str) -> None:
        """Remove a file that was begun."""
        with self._guard:
            self._reserved.pop(name, None)
            for path in (self.folder / name, self.folder / name.removeprefix(NEW)):
                _unlink(path)

    def finish(self, name: str, saved: Saved) -> bool:
        """Keep a file that was begun, in place of what it goes on from; return whether it is kept.

        Raises OSError.
        """
        path = self.folder / name
        path.chmod(private.FILE)
        saved.size_bytes, saved.content_hash = path.stat().st_size, _hash_file(path)
        saved.saved_at = saved.used_at = self._now_s()
        with self._guard:
            _, reserved = self._reserved.pop(name, ("", 0))
            self._written.size_bytes += saved.size_bytes
            private.replace(self._written_file, msgspec.json.encode(self._written))
            if saved.size_bytes > reserved and not self._make_room(saved.size_bytes, saved.model):
                path.unlink(missing_ok=True)
                return False
            for each in list(self._saved.values()):
                same = (each.key, each.owner) == (saved.key, saved.owner)
                if same and saved.blocks[: len(each.blocks)] == each.blocks:
                    saved.hits += each.hits
                    self.drop(each)
            path.rename(self.folder / f"{saved.name}{DATA}")
            self._write_record(saved)
            self._saved[saved.name] = saved
        return True

    def check(self, saved: Saved) -> bool:
        """Return whether a file is as it was written; else it is removed."""
        path = self.folder / f"{saved.name}{DATA}"
        try:
            good = (
                path.stat().st_size == saved.size_bytes and _hash_file(path) == saved.content_hash
            )
        except OSError:
            good = False
        if not good:
            log.warning("%s: damaged conversation file; processing its prompt again", saved.model)
            self.drop(saved)
        return good

    def note_use(self, saved: Saved) -> None:
        """Note that a conversation was restored."""
        with self._guard:
            saved.used_at, saved.hits = self._now_s(), saved.hits + 1
            if saved.name in self._saved:
                with suppress(OSError):  # it only has the use of an earlier time
                    self._write_record(saved)

    def drop(self, saved: Saved) -> None:
        """Remove a conversation."""
        with self._guard:
            self._saved.pop(saved.name, None)
            remove(self.folder, saved)

    def drop_where(self, unwanted: Callable[[Saved], bool]) -> None:
        """Remove all that are unwanted."""
        with self._guard:
            for saved in [each for each in self._saved.values() if unwanted(each)]:
                self.drop(saved)

    def trim_blocks(self) -> None:
        """Keep what engines have written within what is left of bound and disk. Raises OSError."""
        total, free = self._measure_disk()
        lacking = LEAST_FREE * total - free
        most = self._most_bytes - self.size_bytes
        if lacking > 0:
            most = min(most, int(self._blocks.total() - lacking))
        self._blocks = trim_blocks(self.folder, max(0, most), dict(self._shares))

    def _measure_disk(self) -> tuple[int, int]:
        """Return its bytes and the free ones; make a removed folder again. Raises OSError."""
        if not self.folder.exists():
            log.warning("folder '%s' was removed: creating a new one", self.folder)
            self._saved.clear()
            self._lock.release()
            private.make_folder(self.folder)
            self._lock.acquire(timeout=0)
        usage = shutil.disk_usage(self.folder)
        return usage.total, usage.free

    def _make_room(self, wanted_bytes: int, model: str | None) -> bool:
        """Remove what has the least value of a model that takes too much, then of all."""
        now_s = self._now_s()
        own = self._shares.get(model, self._most_bytes) if model else self._most_bytes
        for of, most_bytes in ((model, own), (None, self._most_bytes)):
            while self._count(of) + wanted_bytes > most_bytes:
                kept = [each for each in self._saved.values() if of is None or each.model == of]
                if not kept:
                    return False
                self.drop(max(kept, key=lambda x: (now_s - x.used_at + 1) * x.size_bytes))
        return True

    def _write_record(self, saved: Saved) -> None:
        private.replace(self.folder / f"{saved.name}{RECORD}", msgspec.json.encode(saved))


def read_records(folder: Path) -> list[Saved]:
    """Return the conversations whose files are there; what cannot be read is removed."""
    found = []
    for path in folder.glob(f"*{RECORD}"):
        try:
            saved = msgspec.json.decode(path.read_bytes(), type=Saved)
            if saved.name == path.stem and path.with_suffix(DATA).is_file():
                found.append(saved)
                continue
        except (OSError, ValueError, RecursionError):
            pass
        _unlink(path)
    return found


def remove_where(folder: Path, unwanted: Callable[[Saved], bool]) -> list[Saved]:
    """Remove what is unwanted of a folder that a server may use; return what that was."""
    found = [each for each in read_records(folder) if unwanted(each)]
    for each in found:
        remove(folder, each)
    return found


def remove(folder: Path, saved: Saved) -> None:
    """Remove the files of a conversation."""
    for suffix in (RECORD, DATA):
        _unlink(folder / f"{saved.name}{suffix}")


def _unlink(path: Path) -> None:
    """Remove a file if that can be: it may be gone, a folder, or another user's."""
    with suppress(OSError):
        path.unlink()


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
