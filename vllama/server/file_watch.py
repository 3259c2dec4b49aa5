"""Notices changes of the config file, and of the files that it names (`--watch`).

Their metadata are polled, by their names. This sees an atomic rename over a file, the swap of a
symbolic link on the way to it (Kubernetes replaces a ConfigMap so) and changes on network drives,
which a watch on the file itself would miss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from vllama.base import executors

POLL_S = 0.5

Signature = tuple[object, ...]


class FileWatch:
    """Compares files with what they were when they were read last."""

    def __init__(self, list_files: Callable[[], Iterable[Path]]) -> None:
        """Prepare; `list_files` returns the files of the settings in use."""
        self._list_files = list_files
        self._known = self._latest = self._read()

    async def run(self, changed: Callable[[], object]) -> None:
        """Call `changed` after each change, until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            if await executors.upkeep.run(self.check):
                changed()

    def check(self) -> bool:
        """Return whether a file has changed, and stayed the same since the check before.

        One that is still being written would be read in part.
        """
        before, self._latest = self._latest, self._read()
        if self._latest == self._known or self._latest != before:
            return False
        self._known = self._latest
        return True

    def _read(self) -> Signature:
        return tuple((str(path), _describe(path)) for path in self._list_files())


def _describe(path: Path) -> Signature | None:
    """Return what tells one state of a file from another, None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
