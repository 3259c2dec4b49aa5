"""Answers of the hub, cached with their ETags.

A cached answer is used only after the server has confirmed it (`If-None-Match`, 304), so it is
never out of date. Each answer is a file in a folder of vllama's own.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec

from vllama.models.disk import write_whole

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
        with contextlib.suppress(OSError):
            # private: answers may list private repositories
            write_whole(self._place(url, token), msgspec.msgpack.encode(answer))
            self._prune()

    def _place(self, url: str, token: str | None) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(f"{token or ''}\n{url}".encode()).hexdigest()

    def _prune(self) -> None:
        assert self._folder is not None
        files = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in files[:-_MAX_ANSWERS]:
            path.unlink(missing_ok=True)
