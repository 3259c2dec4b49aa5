"""A small JSON file in which a server keeps what it has measured, for its next starts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from vllama.base import private

log = logging.getLogger(__name__)

LOCK_LIMIT_S = 5.0


class RecordFile:
    """An object of JSON by keys. Another server may use the same file: changes are made under a
    lock, and no reader sees half of one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, object]:
        """Return all that is recorded; nothing if the file is missing or damaged."""
        try:
            value = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def change(self, key: str, make: Callable[[object], object]) -> None:
        """Replace the value of `key`, None if there is none yet; blocks for a small write.

        A file that cannot be written is reported in the log, since no request depends on it.
        """
        try:
            with private.lock_file(self._path.with_suffix(".lock"), LOCK_LIMIT_S):
                known = self.read()
                known[key] = make(known.get(key))
                private.replace(self._path, json.dumps(known))
        except OSError as error:
            log.warning("cannot record a measurement in %s: %s", self._path, error)
