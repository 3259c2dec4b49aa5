"""What an archive takes of a data folder: created models with their files, and what was used.

Usage is kept as rows: SQLite files of strangers are not opened.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from vllama.accounts.usage.store import FILE_NAME, UsageRow, UsageStore
from vllama.admin.backup.archive import BLOBS, MODELS
from vllama.base.errors import VllamaError
from vllama.models.disk import list_files_below
from vllama.models.stores.local import LocalStore, Record
from vllama.models.types import Format


def read_records(data_dir: Path) -> dict[str, Record]:
    """Return the records of all created models, by their names in an archive. Raises VllamaError.

    These are the paths below the data folder, too.
    """
    found = {}
    for path in sorted(list_files_below(data_dir / MODELS)):
        if path.suffix != ".json":
            continue
        try:
            record = Record.decode(path.read_bytes(), data_dir)
        except (OSError, ValueError) as error:
            raise VllamaError(f"cannot read the created model '{path}': {error}") from error
        found[path.relative_to(data_dir).as_posix()] = record
    return found


def with_weights(record: Record, data_dir: Path) -> tuple[Record, Mapping[str, Path]]:
    """Let a record refer to blobs only; return it and the blobs, by their names in an archive.

    A model of several files that have to keep their names (safetensors, a split GGUF) stays as it
    is: it has to be pulled again. Raises OSError.
    """
    base = record.base
    if base.format is not Format.GGUF or {*base.files} - {base.path, base.projector}:
        return record, {}
    files = {*base.files, *record.adapters} | ({record.draft} if record.draft else set())
    if not all(file.is_file() for file in files):
        return record, {}
    names = {file: name_blob(file) for file in files}
    blobs = {file: data_dir / name for file, name in names.items()}
    moved = replace(
        record,
        base=msgspec.structs.replace(
            base,
            path=blobs[base.path],
            files=tuple(blobs[file] for file in base.files),
            projector=blobs[base.projector] if base.projector else None,
        ),
        adapters=tuple(blobs[file] for file in record.adapters),
        draft=blobs[record.draft] if record.draft else None,
    )
    return moved, {name: file for file, name in names.items()}


def name_blob(file: Path) -> str:
    """Return the name that a file has as a blob, which is that of its content. Raises OSError."""
    if file.parent.name == BLOBS.rstrip("/") and file.name.startswith("sha256-"):
        return f"{BLOBS}{file.name}"
    with file.open("rb") as content:
        return f"{BLOBS}sha256-{hashlib.file_digest(content, 'sha256').hexdigest()}"


def list_missing(store: LocalStore, names: Iterable[str]) -> dict[str, str]:
    """Return what those created models lack whose files are not all there: by name, what to do."""
    wanted, found = set(names), {}
    for bundle in store.list():
        missing = [file for file in bundle.files if not file.exists()]
        if bundle.name not in wanted or (bundle.files and not missing):
            continue
        found[bundle.name] = (
            f"vllama pull {bundle.base}"
            if bundle.base
            else f"it needs the file {(missing or [bundle.path])[0]}; export it --with-weights"
        )
    return found


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
