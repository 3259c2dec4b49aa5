"""Puts what a server has of its own into an archive, and takes it from one: all of it, or nothing.

The server may run during an export. An import goes so:

1. Unpack into a folder beside the places, checking names, sizes and checksums.
2. Read everything as the server would.
3. Refuse to replace anything that differs, unless told to.
4. Move the files into their places; if one cannot be moved, put everything back.
"""

from __future__ import annotations

import contextlib
import filecmp
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vllama import __version__, config
from vllama.accounts.keys.store import read_keys
from vllama.admin.backup.archive import (
    BLOBS,
    CONFIG,
    KEYS,
    USAGE,
    describe_parts,
    unpack_archive,
    write_archive,
)
from vllama.admin.backup.contents import (
    FOLDER,
    list_missing,
    read_records,
    read_rows,
    read_usage,
    replaced_usage,
    with_weights,
)
from vllama.base import private
from vllama.base.errors import ConfigError, VllamaError
from vllama.base.units import rfc3339_local
from vllama.config import SETTINGS, Config, keys_file
from vllama.models.disk import get_free_bytes
from vllama.models.library import open_library


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an archive has got, described by `parts`; `secrets` are keys of the config file."""

    parts: tuple[str, ...]
    secrets: tuple[str, ...]


def export(path: Path, settings: Config, *, weights: bool, force: bool, now_s: float) -> Exported:
    """Write the archive `path`. Raises VllamaError."""
    if path.exists() and not force:
        raise VllamaError(
            f"cannot export to '{path}': it exists", hint="choose another name, or add --force"
        )
    try:
        files: dict[str, Path | bytes] = {}
        if settings.config_file is not None:
            files[CONFIG] = settings.config_file.read_bytes()
        if (keys := keys_file(settings.data_dir)).exists():
            files[KEYS] = keys.read_bytes()
        if rows := read_usage(settings.data_dir):
            files[USAGE] = msgspec.json.encode(rows)
        records = read_records(settings.data_dir)
        for name, record in records.items():
            if weights:
                record, blobs = with_weights(record, settings.data_dir)
                files |= blobs
            files[name] = record.encode(settings.data_dir)
        manifest = write_archive(path, files, vllama=__version__, created_at=rfc3339_local(now_s))
    except OSError as error:
        raise VllamaError(
            f"cannot export to '{path}': {error.strerror or error}: {error.filename}"
        ) from error
    models = tuple(record.name for record in records.values())
    return Exported(parts=describe_parts(manifest, models), secrets=find_secrets(settings))


def find_secrets(settings: Config) -> tuple[str, ...]:
    """Return the keys of the config file that hold secrets."""
    found = [
        setting.key
        for setting in SETTINGS
        if setting.secret and settings.sources.get(setting.field) == str(settings.config_file)
    ]
    for each in settings.upstreams:
        if each.name and each.key and not (each.key_env or each.key_file):
            found.append(f"upstreams.{each.name}.key")
    return tuple(found)


SHOWN = 5
"""Files that an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What has been imported, described by `parts`.

    `missing` says of models without their files how to get these. `notes` are warnings.
    """

    parts: tuple[str, ...]
    missing: dict[str, str]
    notes: tuple[str, ...]


def import_archive(
    path: Path,
    settings: Config,
    config_file: Path,
    *,
    force: bool,
    fault: ConfigError | None = None,
) -> Imported:
    """Import everything in the archive `path`, which may replace things only with `force`.

    The archive's config file becomes `config_file`; if it names a data folder, the rest goes there,
    otherwise to that of `settings`. `fault` is what is wrong with the present config file: it has
    to be replaced, since nobody knows which data folder it means. Raises VllamaError.
    """
    try:
        private.make_folder(settings.data_dir)
        with tempfile.TemporaryDirectory(prefix=".import-", dir=settings.data_dir) as scratch:
            folder = Path(scratch)
            manifest = unpack_archive(path, folder, free_bytes=get_free_bytes(folder))
            models = tuple(record.name for record in read_records(folder).values())
            read_keys(folder / KEYS)  # only to see that the server can
            rows = read_rows(folder / USAGE)
            if fault is not None and not (folder / CONFIG).exists():
                raise fault
            settings, notes = read_settings(folder / CONFIG, settings)
            store = open_library(config.models_settings(settings)).local
            with store.locked():
                moves = find_moves(manifest.files, folder, settings.data_dir, config_file)
                taken = [str(target) for target in moves.values() if target.exists()]
                before = read_usage(settings.data_dir)
                if rows and before and rows != before:
                    taken.append(str(settings.data_dir / FOLDER))
                if taken and not force:
                    raise VllamaError(
                        f"cannot import '{path}': {describe_taken(taken)}",
                        hint="add --force to replace what is there",
                    )
                with replaced_usage(settings.data_dir, rows if rows != before else []):
                    put_into_place(moves)
            missing = list_missing(store, models)
    except OSError as error:
        raise VllamaError(
            f"cannot import '{path}': {error.strerror or error}: '{error.filename}'"
        ) from error
    return Imported(parts=describe_parts(manifest, models), missing=missing, notes=notes)


def read_settings(file: Path, settings: Config) -> tuple[Config, tuple[str, ...]]:
    """Return the settings with a config file, and warnings; it may suit another machine only."""
    if not file.exists():
        return settings, ()
    try:
        read = config.load({}, config.environ(), file)
    except ConfigError as error:
        return settings, (f"the config file cannot be used as it is: {error.sentence()}",)
    return read, read.notes


def find_moves(
    names: Iterable[str], folder: Path, data_dir: Path, config_file: Path
) -> dict[Path, Path]:
    """Return the places of unpacked files, without those that are there already.

    What others refer to comes first.
    """
    moves = {}
    for name in sorted(names, key=lambda name: not name.startswith(BLOBS)):
        if name == USAGE:
            continue
        source, target = folder / name, data_dir / name
        if name == CONFIG:
            target = config_file.resolve()  # a symbolic link stays one
        if not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
            moves[source] = target
    return moves


def describe_taken(places: Sequence[str]) -> str:
    """Say what exists with other contents."""
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    shown = ", ".join(f"'{place}'" for place in places[:SHOWN])
    return f"{shown}{more} exist{'s' if len(places) == 1 else ''} with other contents"


def put_into_place(moves: Mapping[Path, Path]) -> None:
    """Move files to their targets; if one cannot be moved, put everything back. Raises OSError."""
    with contextlib.ExitStack() as done, contextlib.ExitStack() as undo:
        for source, target in moves.items():
            private.make_folder(target.parent)
            new, old = (target.with_name(f".{target.name}.{end}") for end in ("new", "old"))
            done.callback(old.unlink, missing_ok=True)
            undo.callback(new.unlink, missing_ok=True)
            shutil.move(source, new)  # the config file may be on another file system
            if target.exists():
                target.replace(old)
                undo.callback(old.replace, target)
            else:
                undo.callback(target.unlink, missing_ok=True)
            new.replace(target)
        undo.pop_all()
