"""Answers of hubs and registries: read with a limit, and kept with their ETags.

A server may compress what nobody asked it to compress, and a few kilobytes of zstd can become
gigabytes of blanks; so the HTTP library decodes nothing here. A kept answer is asked for again
with `If-None-Match` and used only after a 304, so it is never older than what the hub would say
now. Each answer is one file in a folder of vllama's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec

from vllama import private
from vllama.errors import SourceError

_KEPT = 256


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A body with its ETag; `next` is the query of the following page, if there is one."""

    etag: str
    body: bytes
    next: str | None = None


class AnswerCache:
    """Answers by address, in `folder`; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, url: str, token: str | None) -> KeptAnswer | None:
        """Return what is kept for an address; of another token's answers nothing."""
        if self._folder is None:
            return None
        try:
            return msgspec.msgpack.decode(self._place(url, token).read_bytes(), type=KeptAnswer)
        except (OSError, ValueError):  # ValueError: msgspec's own
            return None

    def keep(self, url: str, token: str | None, answer: KeptAnswer) -> None:
        """Keep an answer; a folder that cannot be written keeps none."""
        if self._folder is None:
            return
        place = self._place(url, token)
        with contextlib.suppress(OSError):
            private.make_folder(self._folder)
            # lists of private repositories are nobody else's business
            handle, name = tempfile.mkstemp(prefix=".", dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.msgpack.encode(answer))
            Path(name).replace(place)
            self._prune()

    def _place(self, url: str, token: str | None) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(f"{token or ''}\n{url}".encode()).hexdigest()

    def _prune(self) -> None:
        assert self._folder is not None
        files = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in files[:-_KEPT]:
            path.unlink(missing_ok=True)


GZIP = {"accept-encoding": "gzip"}
"""The header to ask with."""


def read_body(response: httpx2.Response, most_bytes: int) -> bytes:
    """Return the body of a streamed answer that has not been read.

    Raises SourceError for one that is longer, damaged or encoded in another way; what the HTTP
    library raises.
    """
    body = bytearray()
    for piece in _decoded(response, most_bytes + 1):
        body += piece
        if len(body) > most_bytes:
            raise SourceError(f"cannot read {_place(response)}: its answer is too long")
    return bytes(body)


def _decoded(response: httpx2.Response, most_bytes: int) -> Iterator[bytes]:
    """Yield the body in pieces of at most `most_bytes`."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        yield from response.iter_raw()
        return
    if encoding not in ("gzip", "x-gzip"):
        raise SourceError(
            f"cannot read {_place(response)}: it is compressed as {encoding[:40]!r}, "
            "which nobody asked for"
        )
    unpacked, received = zlib.decompressobj(wbits=31), 0
    for packed in response.iter_raw():
        received += len(packed)  # empty blocks become nothing, however many there are
        if unpacked.eof or received > most_bytes:
            break
        try:
            yield unpacked.decompress(packed, most_bytes)
        except zlib.error as error:
            raise SourceError(f"cannot read {_place(response)}: its gzip is damaged") from error
    if not unpacked.eof:
        raise SourceError(f"cannot read {_place(response)}: its gzip has no end")


def _place(response: httpx2.Response) -> str:
    return str(response.url.copy_with(query=None, userinfo=b""))
