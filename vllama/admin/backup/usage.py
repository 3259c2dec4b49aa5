"""What was used, as rows in an archive: SQLite files of strangers are not opened."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from vllama.accounts.usage.store import FILE_NAME, UsageRow, UsageStore
from vllama.base.errors import VllamaError

COLUMNS = ("day", "key", "model")
FOLDER = "usage"


def read_usage(data_dir: Path) -> list[UsageRow]:
    """Return all rows of a data folder, whose server may run. Raises VllamaError.

    Requests of the last second may be missing while it runs.
    """
    if not (data_dir / FOLDER / FILE_NAME).exists():
        return []
    with open_usage(data_dir) as store:
        return store.list_rows(COLUMNS)


def read_rows(file: Path) -> list[UsageRow]:
    """Return the rows of an archive; none without such a file. Raises VllamaError."""
    if not file.exists():
        return []
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[UsageRow])
    except ValueError as error:
        raise VllamaError(f"cannot read the usage in the archive: {error}") from error


@contextmanager
def replaced_usage(data_dir: Path, rows: list[UsageRow]) -> Iterator[None]:
    """Replace what was used in a data folder by `rows`, if any, and if the context succeeds.

    Raises VllamaError.
    """
    if not rows:
        yield
        return
    with open_usage(data_dir) as store, store.replacing(rows):
        yield


@contextmanager
def open_usage(data_dir: Path) -> Iterator[UsageStore]:
    """Open the database of a data folder, and create it if it is missing. Raises VllamaError."""
    folder = data_dir / FOLDER
    try:
        store = UsageStore(folder)
        try:
            yield store
        finally:
            store.close()
    except (sqlite3.Error, UnicodeError) as error:
        raise VllamaError(f"cannot open the usage in '{folder}': {error}") from error
