"""Headers of GGUF files, kept from one process to the next.

A vocabulary takes some 70 ms to skip. A process that lists the models reads it of each, and again
after each start.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from vllama import __version__
from vllama.base import private
from vllama.models.headers.gguf.header import GgufHeader, read_header
from vllama.models.headers.gguf.parser import LongArray
from vllama.models.lookup import FRESH_NS, sign

FILE_NAME = "headers.sqlite"
_BUSY_S = 1.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS headers (
  path TEXT PRIMARY KEY, signature TEXT NOT NULL, header BLOB NOT NULL
) WITHOUT ROWID
"""
_encoder = msgspec.msgpack.Encoder(enc_hook=lambda _: None)  # the path of a long array
_decoder = msgspec.msgpack.Decoder(GgufHeader)


class KeptHeaders:
    """The headers kept in `folder`. Small ones are read anew; all are, without the database."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def read(self, path: Path) -> GgufHeader:
        """Return the header of a file, as `read_header` does. Raises BadModelFile."""
        signed, now_ns = sign(path), time.time_ns()
        if signed is None or max(signed[2:]) > now_ns - FRESH_NS:  # a change may look like none
            return read_header(path)
        signature = f"{__version__} {signed}"
        with contextlib.suppress(sqlite3.Error, OSError, msgspec.MsgspecError):
            if (header := self._find(path, signature)) is not None:
                return header
        header = read_header(path)
        if any(isinstance(value, LongArray) for value in header.metadata.values()):
            with contextlib.suppress(sqlite3.Error, OSError):
                self._keep(path, signature, header)
        return header

    def _find(self, path: Path, signature: str) -> GgufHeader | None:
        with self._lock:
            query = "SELECT header FROM headers WHERE path = ? AND signature = ?"
            found = self._connect().execute(query, (str(path), signature)).fetchone()
        if found is None:
            return None
        header = _decoder.decode(found[0])
        return replace(header, metadata={k: _restore(v, path) for k, v in header.metadata.items()})

    def _keep(self, path: Path, signature: str, header: GgufHeader) -> None:
        row = str(path), signature, _encoder.encode(header)
        with self._lock, self._connect() as database:
            database.execute("REPLACE INTO headers VALUES (?, ?, ?)", row)

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            private.make_folder(self._path.parent)
            self._path.touch(private.FILE)
            found = sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False)
            found.execute("PRAGMA synchronous = OFF")  # what is lost or damaged is read anew
            found.execute(_SCHEMA)
            with found:
                paths = found.execute("SELECT path FROM headers").fetchall()
                gone = [row for row in paths if sign(row[0]) is None]
                found.executemany("DELETE FROM headers WHERE path = ?", gone)
            self._connection = found
        return self._connection


def _restore(value: object, path: Path) -> object:
    """Return a value of a header's metadata from its form in the database."""
    if not isinstance(value, dict):
        return value
    return LongArray(**value | {"path": path, "marks": tuple(value["marks"])})
