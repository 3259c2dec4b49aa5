"""Answers of hubs and registries: read with a size limit, and cached with their ETags.

A server may compress its answer without being asked, and a few kilobytes of zstd can expand to
gigabytes. So the HTTP library decodes nothing here. A cached answer is used only after the server
has confirmed it (`If-None-Match`, 304), so it is never out of date. Each answer is a file in a
folder of vllama's own.
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

_MAX_ANSWERS = 256


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A body with its ETag; `next` is the query of the next page, if there is one."""

    etag: str
    body: bytes
    next: str | None = None


class AnswerCache:
    """A cache of answers by address in `folder`; None caches nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, url: str, token: str | None) -> KeptAnswer | None:
        """Return the cached answer for an address and token, or None."""
        if self._folder is None:
            return None
        try:
            return msgspec.msgpack.decode(self._place(url, token).read_bytes(), type=KeptAnswer)
        except (OSError, ValueError):  # msgspec raises ValueErrors
            return None

    def keep(self, url: str, token: str | None, answer: KeptAnswer) -> None:
        """Cache an answer, if the folder can be written."""
        if self._folder is None:
            return
        place = self._place(url, token)
        with contextlib.suppress(OSError):
            private.make_folder(self._folder)
            # mkstemp makes the file private: answers may list private repositories
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
        for path in files[:-_MAX_ANSWERS]:
            path.unlink(missing_ok=True)


GZIP = {"accept-encoding": "gzip"}
"""The header for requests whose answers `read_body` reads."""


def read_body(response: httpx2.Response, most_bytes: int) -> bytes:
    """Return the body of a streamed answer, of at most `most_bytes`.

    Raises SourceError if it is longer, damaged or has another encoding, and the errors of the HTTP
    library.
    """
    body = bytearray()
    for piece in _decode(response, most_bytes + 1):
        body += piece
        if len(body) > most_bytes:
            raise SourceError(f"cannot read {_place(response)}: its answer is too long")
    return bytes(body)


def _decode(response: httpx2.Response, most_bytes: int) -> Iterator[bytes]:
    """Yield the body in pieces of at most `most_bytes`."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        yield from response.iter_raw()
        return
    if encoding not in ("gzip", "x-gzip"):
        raise SourceError(
            f"cannot read {_place(response)}: it is compressed as {encoding[:40]!r}, "
            "which was not requested"
        )
    unpacked, received = zlib.decompressobj(wbits=31), 0
    for packed in response.iter_raw():
        received += len(packed)  # a limit for endless empty blocks, which decompress to nothing
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
