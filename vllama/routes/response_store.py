"""Responses that are kept, so that a client may go on from one by its id (`previous_response_id`).

All are kept in memory, the least recently used ones giving way, unless the client says `store:
false`. One with `store: true` is also written to a file, so that it outlives the server. A record
holds only what its own request added; a conversation is the chain of records.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from vllama import private
from vllama.errors import BadRequest, VllamaError

log = logging.getLogger(__name__)

MAX_BYTES = 64 * 1024 * 1024
"""Of all records in memory."""
MAX_FILES = 10_000
"""Records on disk; the oldest ones are removed."""
_PRUNE_EVERY = 100
_ID = re.compile(r"resp_[0-9a-f]{24}")


class Record(msgspec.Struct, frozen=True, kw_only=True):
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
        """What it added to the conversation, the answer included."""
        return [*self.input, *self.response["output"]]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class ResponseNotFound(VllamaError):
    """There is no such response, or it is somebody else's."""

    status = 404

    def __init__(self, identity: str) -> None:
        self.identity = identity
        super().__init__(f"Response with id '{identity[:80]}' not found.")


class PreviousNotFound(BadRequest):
    """A request goes on from a response that is not there."""

    status = 404

    def __init__(self, identity: str) -> None:
        super().__init__(f"Previous response with id '{identity[:80]}' not found.")


class ResponseStore:
    """The responses of one server."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        """`folder` is made when the first record is written there."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()  # most recently used last
        self._size = 0
        self._written = 0

    def keep(self, record: Record, after: Sequence[Record] = ()) -> None:
        """Keep a record in memory; others give way. `after` are those it goes on from."""
        self._put(record.id, _encode(record))
        for earlier in reversed(after):  # its beginning goes last, or the rest would be of no use
            self._touch(earlier.id)

    async def save(self, identity: str, owner: str) -> None:
        """Write a record to disk, with those that its conversation begins with.

        A full disk is logged and nothing else: the client has its answer.
        """
        try:
            for record in await self.chain_of(identity, owner):
                await asyncio.to_thread(self._write, record.id, _encode(record))
        except (OSError, VllamaError) as error:
            log.warning("cannot keep response %s on disk: %s", identity, error)

    async def find(self, identity: str, owner: str) -> Record:
        """Return a record. Raises ResponseNotFound, also if it is another owner's."""
        if not _ID.fullmatch(identity):
            raise ResponseNotFound(identity)
        data = self._kept.get(identity)
        if data is None:
            data = await asyncio.to_thread(self._read, identity)
            if data is None:
                raise ResponseNotFound(identity)
            self._put(identity, data)
        self._touch(identity)
        try:
            record = _decode(data)
        except ValueError:
            log.warning("cannot read response %s: its file is damaged", identity)
            raise ResponseNotFound(identity) from None
        if record.owner != owner:
            raise ResponseNotFound(identity)
        return record

    async def chain(self, identity: str, owner: str) -> list[Record]:
        """Return the records that a request goes on from, oldest first. Raises PreviousNotFound."""
        try:
            return await self.chain_of(identity, owner)
        except ResponseNotFound as error:
            raise PreviousNotFound(error.identity) from None

    async def chain_of(self, identity: str, owner: str) -> list[Record]:
        """Return the records of a conversation up to `identity`, oldest first.

        Raises ResponseNotFound if one of them is not there any more.
        """
        records: list[Record] = []
        wanted: str | None = identity
        while wanted is not None:
            records.append(await self.find(wanted, owner))
            wanted = records[-1].previous
        return records[::-1]

    async def remove(self, identity: str, owner: str) -> None:
        """Forget a record. Raises ResponseNotFound."""
        await self.find(identity, owner)
        self._drop(identity)
        await asyncio.to_thread(self._path(identity).unlink, missing_ok=True)

    # -- memory -------------------------------------------------------------------------------

    def _put(self, identity: str, data: bytes) -> None:
        self._drop(identity)
        self._kept[identity] = data
        self._size += len(data)
        while self._size > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _touch(self, identity: str) -> None:
        if identity in self._kept:
            self._kept.move_to_end(identity)

    def _drop(self, identity: str) -> None:
        self._size -= len(self._kept.pop(identity, b""))

    # -- disk ---------------------------------------------------------------------------------

    def _path(self, identity: str) -> Path:
        return self._folder / f"{identity}.json"

    def _read(self, identity: str) -> bytes | None:
        try:
            return self._path(identity).read_bytes()
        except OSError:
            return None

    def _write(self, identity: str, data: bytes) -> None:
        path = self._path(identity)
        if path.exists():
            return
        private.make_folder(self._folder)
        private.replace(path, data.decode())
        self._written += 1
        if self._written % _PRUNE_EVERY == 1:
            self._prune()

    def _prune(self) -> None:
        """Remove the oldest files beyond the limit."""
        files = [(path.stat().st_mtime, path) for path in self._folder.glob("resp_*.json")]
        for _, path in sorted(files)[: max(0, len(files) - MAX_FILES)]:
            path.unlink(missing_ok=True)
