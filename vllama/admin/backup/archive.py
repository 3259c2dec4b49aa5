"""The file of `vllama export`: a tar.gz with a manifest and what it lists.

    manifest.json                     version of the format, and each file's size and SHA-256
    config.toml                       the config file
    keys.json                         the named keys; of a key only its digest
    usage.json                        what was used, by day, key and model
    models/<name>/<tag>.json          created models, as in the data folder
    blobs/sha256-<hex>                files that these models consist of (--with-weights)

A file may come from anywhere, so nothing is taken from it whose name, kind, size or checksum is not
as the manifest says, and no name can leave the folder that it is unpacked in.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from vllama.base import private
from vllama.base.errors import DiskFull, VllamaError
from vllama.base.units import format_bytes_decimal

VERSION = 1
MANIFEST = "manifest.json"
CONFIG = "config.toml"
KEYS = "keys.json"
USAGE = "usage.json"
MODELS = "models/"
BLOBS = "blobs/"
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
MAX_HEADER_BYTES = 64 * 1024
CHUNK_BYTES = 1024 * 1024
_BLOB = re.compile(r"blobs/sha256-([0-9a-f]{64})")


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of an archive."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive holds: its files by name. `vllama` is the version that wrote it."""

    version: int = VERSION
    vllama: str
    created_at: str
    files: dict[str, Entry]


def write_archive(
    path: Path, files: Mapping[str, Path | bytes], *, vllama: str, created_at: str
) -> Manifest:
    """Write `files`, by their names in the archive, to a private file. Raises OSError.

    The manifest comes first, so every file is read twice: once for its checksum.
    """
    entries = {name: _describe(source) for name, source in files.items()}
    manifest = Manifest(vllama=vllama, created_at=created_at, files=entries)
    new = path.with_name(f".{path.name}.new")
    try:
        with (
            private.create(new) as file,
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive,
        ):
            head = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            _add(archive, MANIFEST, len(head), io.BytesIO(head))
            for name, source in files.items():
                with _open(source) as content:
                    _add(archive, name, entries[name].size_bytes, content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return manifest


def unpack_archive(path: Path, folder: Path, *, free_bytes: int) -> Manifest:
    """Unpack a whole archive into `folder`, checking everything. Raises VllamaError, OSError."""
    try:
        with (
            gzip.open(path) as file,
            _Unpacked(file) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as archive,
        ):
            manifest = _read_manifest(path, archive, unpacked.next_of(archive))
            needed_bytes = sum(entry.size_bytes for entry in manifest.files.values())
            if needed_bytes > free_bytes:
                raise DiskFull(
                    f"cannot import '{path}': {format_bytes_decimal(needed_bytes)} are needed and "
                    f"{format_bytes_decimal(free_bytes)} are free at '{folder.parent}'"
                )
            missing = dict(manifest.files)
            while member := unpacked.next_of(archive):
                entry = missing.pop(member.name, None)
                content = archive.extractfile(member) if member.isreg() else None
                if entry is None or content is None or member.size != entry.size_bytes:
                    raise VllamaError(f"cannot import '{path}': unexpected entry '{member.name}'")
                _unpack(path, member.name, entry, content, folder)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise VllamaError(
            f"cannot import '{path}': it is damaged, or no file of 'vllama export': {error}"
        ) from error
    if missing:
        raise VllamaError(f"cannot import '{path}': '{next(iter(missing))}' is missing in it")
    return manifest


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of an archive; tarfile keeps headers in memory, however long they are."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file, self._left = file, float(MAX_HEADER_BYTES)

    def read(self, size: int = -1) -> bytes:
        """Raise ReadError in the midst of a long header."""
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError("one of its headers is too long")
        return data

    def next_of(self, archive: tarfile.TarFile) -> tarfile.TarInfo | None:
        """Return the next member. Raises TarError."""
        self._left = MAX_HEADER_BYTES
        vars(archive)["members"].clear()  # it would keep the headers of all
        member = archive.next()
        self._left = math.inf
        if archive.pax_headers:
            raise tarfile.ReadError("it has a header for all entries")
        return member


def describe_parts(manifest: Manifest, models: Sequence[str]) -> tuple[str, ...]:
    """Describe the contents of an archive; `models` are the names of its created models."""
    names = manifest.files
    blobs = [entry.size_bytes for name, entry in names.items() if name.startswith(BLOBS)]
    parts = (
        "the config file" if CONFIG in names else "",
        "the named keys" if KEYS in names else "",
        "what was used" if USAGE in names else "",
        f"created models: {', '.join(models)}" if models else "",
        f"files of models: {len(blobs)} ({format_bytes_decimal(sum(blobs))})" if blobs else "",
    )
    return tuple(part for part in parts if part)


def _read_manifest(
    path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo | None
) -> Manifest:
    content = archive.extractfile(member) if member is not None and member.isreg() else None
    if member is None or member.name != MANIFEST or content is None:
        raise VllamaError(f"cannot import '{path}': it is no file of 'vllama export'")
    manifest = msgspec.json.decode(content.read(MAX_MANIFEST_BYTES), type=Manifest)
    if manifest.version > VERSION:
        raise VllamaError(
            f"cannot import '{path}': vllama {manifest.vllama} wrote it in a newer form",
            hint="install that version of vllama",
        )
    for name, entry in manifest.files.items():
        blob = _BLOB.fullmatch(name)
        if not (blob or _is_known(name)) or (blob and blob[1] != entry.sha256):
            raise VllamaError(f"cannot import '{path}': unexpected entry '{name}'")
    return manifest


def _is_known(name: str) -> bool:
    """Tell whether an archive may have an entry of this name; names are those of POSIX paths."""
    if name in (CONFIG, KEYS, USAGE):
        return True
    parts = PurePosixPath(name).parts
    stays = "/".join(parts) == name and ".." not in parts and "\\" not in name
    return stays and name.startswith(MODELS) and name.endswith(".json") and len(parts) > 2


def _unpack(path: Path, name: str, entry: Entry, content: IO[bytes], folder: Path) -> None:
    target = folder / name
    private.make_folder(target.parent)
    digest = hashlib.sha256()
    with private.create(target) as file:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != entry.sha256:
        raise VllamaError(f"cannot import '{path}': '{name}' is damaged")


def _describe(source: Path | bytes) -> Entry:
    size_bytes = len(source) if isinstance(source, bytes) else source.stat().st_size
    with _open(source) as content:
        return Entry(size_bytes, hashlib.file_digest(content, "sha256").hexdigest())


def _add(archive: tarfile.TarFile, name: str, size_bytes: int, content: io.BufferedIOBase) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size_bytes, private.FILE
    archive.addfile(info, content)


@contextmanager
def _open(source: Path | bytes) -> Iterator[io.BufferedIOBase]:
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        yield file
