"""The hub's answers kept with their ETags, so that an unchanged one is not sent again.

Each answer is asked for again (`If-None-Match`) and only used on a 304: what is here is never
newer or older than what the hub would say. One file an answer, in a folder of vllama's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from vllama import private

_KEPT = 256


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A body with its ETag; `next` is the query of the following page, if there is one."""

    etag: str
    body: bytes
    next: str | None = None


class Answers:
    """Answers by address, in `folder`; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, url: str, token: str | None) -> Answer | None:
        """Return what is kept for an address; of another token's answers nothing."""
        if self._folder is None:
            return None
        try:
            return msgspec.msgpack.decode(self._place(url, token).read_bytes(), type=Answer)
        except (OSError, ValueError):  # ValueError: msgspec's own
            return None

    def keep(self, url: str, token: str | None, answer: Answer) -> None:
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
