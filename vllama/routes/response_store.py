"""Responses that are kept, so that a client may go on from one by its id (`previous_response_id`).

All are kept in memory, unless the client says `store: false`; the key that has most there gives
way, with its least recently used ones. One with `store: true` is also written to a file, so that it
outlives the server. A record holds only what its own request added; a conversation is the chain of
records.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from vllama.base import executors, private
from vllama.base.errors import BadRequest, NotFound, VllamaError
from vllama.base.left_out import read_each
from vllama.dialects.responses.items import REFERENCE, kind_of
from vllama.models.disk import find_room

log = logging.getLogger(__name__)

MAX_BYTES = 64 * 1024 * 1024
"""Of all records in memory."""
MAX_CONVERSATION_BYTES = 48 * 1024 * 1024
"""Of the records that one request goes on from."""
_ID = re.compile(r"resp_[0-9a-f]{24}")
_ITEM_ID = re.compile(r"[a-z]+_(?:in)?([0-9a-f]{24})\d+")


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its response; `owner` is whose key asked ("" on a server without keys).

    `input` are the items that the request added to the conversation of `previous`.
    """

    id: str
    owner: str
    previous: str | None
    input: list[dict[str, Any]]
    response: dict[str, Any]

    @property
    def items(self) -> list[dict[str, Any]]:
        """Items that it added to the conversation, the response included."""
        return [*self.input, *self.response["output"]]


class DiskLimits(msgspec.Struct, frozen=True):
    """Limits of the records on disk; the least recently used are removed."""

    files: int = 10_000
    bytes: int = 1024 * 1024 * 1024
    bytes_of_owner: int = 256 * 1024 * 1024


DISK_LIMITS = DiskLimits()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Exchange).decode


class ResponseStore:
    """The responses of one server."""

    def __init__(
        self, folder: Path, *, max_bytes: int = MAX_BYTES, on_disk: DiskLimits = DISK_LIMITS
    ) -> None:
        """`folder` is made when the first record is written there."""
        self._folder = folder
        self._max_bytes, self._on_disk = max_bytes, on_disk
        self._kept: OrderedDict[str, tuple[str, bytes]] = OrderedDict()  # most recently used last
        self._sizes: Counter[str] = Counter()  # by owner
        self._unchecked = 1.0  # share of the limits that may have been used since the last check

    def keep(self, record: Exchange, after: Sequence[Exchange] = ()) -> None:
        """Keep a record in memory; others give way. `after` are those it goes on from."""
        self._put(record.id, record.owner, _encode(record))
        for earlier in reversed(after):  # its beginning goes last, or the rest would be of no use
            self._touch(earlier.id)

    async def save(self, identity: str, owner: str, after: Sequence[Exchange] = ()) -> None:
        """Write a record to disk, and those `after` which it goes on, unless they are there.

        A full disk is logged and nothing else: the client has its answer.
        """
        try:
            # the beginning last: it is of use for longest
            for one in (identity, *(record.id for record in reversed(after))):
                await executors.storage.run(self._write, one, owner)
        except (OSError, VllamaError) as error:
            log.warning("cannot store response %s on disk: %s", identity, error)

    async def find(self, identity: str, owner: str, word: str = "Response") -> Exchange:
        """Return a record. Raises NotFound in OpenAI's words, also if it is another owner's."""
        not_found = NotFound(f"{word} with id '{identity[:80]}' not found.")
        if not _ID.fullmatch(identity):
            raise not_found
        _, data = self._kept.get(identity, (owner, None))
        is_read = data is None
        if data is None and (data := await executors.disk.run(self._read, identity, owner)) is None:
            raise not_found
        self._touch(identity)
        try:
            record = _decode(data)
        except (ValueError, RecursionError):
            log.warning("cannot read response %s: the file is damaged", identity)
            raise not_found from None
        if record.owner != owner:
            raise not_found
        if is_read:
            self._put(identity, owner, data)
        return record

    async def chain(
        self, identity: str, owner: str, word: str = "Previous response"
    ) -> list[Exchange]:
        """Return the records of a conversation up to `identity`, oldest first.

        Raises NotFound if one of them is not there any more, BadRequest if they are long.
        """
        records: list[Exchange] = []
        wanted: str | None = identity
        size = 0
        while wanted is not None:
            records.append(await self.find(wanted, owner, word))
            size += len(self._kept.get(wanted, ("", b""))[1])
            if size > MAX_CONVERSATION_BYTES:
                raise BadRequest(
                    "cannot continue the response: the conversation is larger than "
                    f"{MAX_CONVERSATION_BYTES} bytes",
                    hint="start a new conversation",
                )
            wanted = records[-1].previous
        return records[::-1]

    async def resolve(self, items: Sequence[dict[str, Any]], owner: str) -> list[dict[str, Any]]:
        """Return items in which references to kept ones are replaced by what they name.

        An item's id has that of its response.
        """
        out = []
        for item in items:
            found, identity = item, str(item.get("id"))
            match = _ITEM_ID.fullmatch(identity)
            if match and kind_of(item) == REFERENCE:
                with suppress(NotFound):
                    record = await self.find(f"resp_{match[1]}", owner)
                    found = next((one for one in record.items if one["id"] == identity), item)
            out.append(found)
        return out

    async def remove(self, identity: str, owner: str) -> None:
        """Forget a record. Raises NotFound."""
        await self.find(identity, owner)
        self._drop(identity)
        for path in self._paths(identity, owner):
            await executors.disk.run(path.unlink, missing_ok=True)

    # -- memory -------------------------------------------------------------------------------

    def _put(self, identity: str, owner: str, data: bytes) -> None:
        self._drop(identity)
        self._kept[identity] = (owner, data)
        self._sizes[owner] += len(data)
        while self._sizes.total() > self._max_bytes:
            [(most, _)] = self._sizes.most_common(1)
            self._drop(next(one for one, (owner, _) in self._kept.items() if owner == most))

    def _touch(self, identity: str) -> None:
        if identity in self._kept:
            self._kept.move_to_end(identity)

    def _drop(self, identity: str) -> None:
        owner, data = self._kept.pop(identity, ("", b""))
        self._sizes[owner] -= len(data)

    # -- disk ---------------------------------------------------------------------------------

    def _paths(self, identity: str, owner: str) -> tuple[Path, Path]:
        """Return where a record is, and where an earlier version has put it."""
        tag = sha256(owner.encode()).hexdigest()[:16] if owner else ""
        return self._folder / f"{identity}.{tag}.json", self._folder / f"{identity}.json"

    def _read(self, identity: str, owner: str) -> bytes | None:
        for path in self._paths(identity, owner):
            with suppress(OSError):
                return path.read_bytes()
        return None

    def _write(self, identity: str, owner: str) -> None:
        """Write the records in memory. Raises OSError, NotFound."""
        for path in self._paths(identity, owner):
            with suppress(FileNotFoundError):
                os.utime(path)
                return
        if identity not in self._kept:
            raise NotFound(f"Response with id '{identity}' not found.")
        _, data = self._kept[identity]
        private.make_folder(self._folder)
        new, limits = self._paths(identity, owner)[0], self._on_disk
        self._unchecked += max(len(data) / limits.bytes_of_owner, 1 / limits.files)
        if self._unchecked > 0.01 or len(data) > find_room(self._folder):
            self._prune(new, len(data))
            self._unchecked = 0.0
        private.replace(new, data)

    def _prune(self, new: Path, size_bytes: int) -> None:
        """Remove the least recently used records, so that a new file is within all limits."""
        limits, total = self._on_disk, size_bytes
        sizes = Counter({new.name.split(".")[1]: size_bytes})
        names = self._folder.glob("resp_*.*")
        files = list(read_each(names, lambda one: (one.stat(), one)))
        kept_bytes = sum(status.st_size for status, _ in files)
        most_bytes = min(limits.bytes, kept_bytes + find_room(self._folder))
        files.sort(key=lambda file: file[0].st_mtime_ns, reverse=True)
        for number, (status, path) in enumerate(files, 2):
            tag = path.name.split(".")[1]
            sizes[tag] += status.st_size
            total += status.st_size
            if sizes[tag] > limits.bytes_of_owner or total > most_bytes or number > limits.files:
                with suppress(OSError):
                    path.unlink()
                total -= status.st_size
