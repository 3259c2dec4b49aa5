"""vllama's own models, created or copied: small JSON files that refer to the files of a base model.

Layout below the data folder::

    models/<host>/<namespace>/<model>/<tag>.json     lower case; the file has the name as typed
    blobs/sha256-<hex>                               files, uploaded or of paths (see `blobs`)

The files of a base in a store are not copied. A base that has moved (a newer revision in the hub's
cache) is found again by its name. Paths below the data folder are stored relative to it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from vllama.base import private
from vllama.base.errors import BadModelFile, BadRequest, InvalidModelRef, VllamaError
from vllama.models.disk import (
    list_files_below,
    list_model_files,
    lock_data,
    remove_empty,
    remove_older,
)
from vllama.models.lookup import Signature, rest_on, sign
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.stores.base import RemovingStore, Store, map_removal_errors, sum_real_sizes
from vllama.models.stores.blobs import BlobStore
from vllama.models.types import Bundle, Definition, Format, Skipped


class LocalStore(RemovingStore):
    """The models created or copied on this machine; `bases` are the stores of their bases."""

    name = "created"

    def __init__(self, data_dir: Path, bases: Sequence[Store] = ()) -> None:
        self.root = data_dir
        self._folder = data_dir / "models"
        self.roots = (self._folder,)
        self._bases = tuple(bases)
        self._asked_bases = False
        self._records: dict[Path, tuple[list[Signature], Bundle]] = {}
        self.blobs = BlobStore(data_dir / "blobs")

    def read_all(self) -> Iterator[Bundle | Skipped]:
        """Yield all models, even those whose base is missing, so that they can be removed."""
        self._asked_bases = False
        for path in sorted(_list_records(self._folder)):
            name = f"{path.parent.name}:{path.stem}"
            yield from self.attempt(name, path, partial(self._read, path))
        # a base that is not on this disk may be on a server that comes and goes
        self.is_watched = not self._asked_bases or all(one.is_watched for one in self._bases)

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model with that name, ignoring case."""
        if ref.kind is Kind.PATH:
            return None
        bundles = (self._load(self._get_path(name)) for name in ref.candidates)
        exact = next((bundle for bundle in bundles if bundle is not None), None)
        return exact or self._find_converted(ref)

    def _find_converted(self, ref: ModelRef) -> Bundle | None:
        """Return the latest conversion of a hub model that is named without a quantization.

        Only converted models of this store have names of the hub.
        """
        if ref.kind is not Kind.HUB or ref.has_tag:
            return None
        folder = self._get_path(ref.canonical).parent
        bundles = (self._load(path) for path in _list_records(folder))
        return max((b for b in bundles if b is not None), key=lambda b: b.modified_s, default=None)

    def write(self, bundle: Bundle, *, digest: str | None = None) -> Bundle:
        """Store `bundle` under its name, replacing a model with that name; return it as stored.

        An existing name keeps its spelling. A copy has the `digest` of its original, as in Ollama.
        Raises BadRequest, VllamaError.
        """
        path = self._get_path(ModelRef.parse(bundle.name).candidates[0])
        with self.locked():
            old = self._load(path)
            self._check_blobs(bundle)
            name = old.name if old is not None else bundle.name
            try:
                record = _make_record(bundle, name, digest).encode(self.root)
                private.replace(path, record, sync=True)
            except OSError as error:
                raise VllamaError(f"cannot write '{path}': {error.strerror or error}") from error
            if old is not None and self.blobs.folder in {file.parent for file in _list_paths(old)}:
                self._prune(old)  # all models are read for it
            kept = self._load(path)
        assert kept is not None  # just written, under the lock
        return kept

    def remove(self, bundle: Bundle) -> int:
        """Delete a model and the uploads that only it uses; its base stays."""
        path = self._get_path(ModelRef.parse(bundle.name).candidates[0])
        with self.locked():
            freed = 0
            with map_removal_errors(bundle), contextlib.suppress(FileNotFoundError):
                freed = path.stat().st_size
                path.unlink()
            remove_empty(path.parent, self._folder)
            return freed + self._prune(bundle)

    # -- files --------------------------------------------------------------------------------

    def _get_path(self, canonical: str) -> Path:
        name, _, tag = canonical.rpartition(":")
        return self._folder.joinpath(*name.split("/")) / f"{tag}.json"

    def sweep(self) -> None:
        """Delete what servers that were killed have left half written."""
        self.blobs.sweep()
        remove_older(path for path in self._folder.rglob(".*") if path.name != ".lock")

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Exclude other threads and processes from writing. Raises VllamaError."""
        return lock_data(self._folder / ".lock", f"write '{self._folder}'")

    def _check_blobs(self, bundle: Bundle) -> None:
        for path in _list_paths(bundle):
            if path.parent == self.blobs.folder and not path.is_file():
                raise BadRequest(
                    f"blob {path.name.replace('-', ':')} not found", hint="upload the file again"
                )

    def _prune(self, old: Bundle) -> int:
        """Delete blobs that no model uses any more: those of `old`, and old ones."""
        used: set[Path] = set()
        for path in _list_records(self._folder):
            bundle = self._load(path)
            if bundle is None:
                return 0  # unknown which blobs it uses
            used.update(_list_paths(bundle))
        return self.blobs.prune(used, _list_paths(old))

    def _load(self, path: Path) -> Bundle | None:
        """Read one file; None if it is missing or damaged."""
        with contextlib.suppress(OSError, ValueError):
            return self._read(path)
        return None

    def _read(self, path: Path) -> Bundle:
        """Read one file, if it or what it refers to has changed. Raises OSError, ValueError."""
        rest_on(path)
        signed, known = [sign(path)], self._records.get(path)
        if known is not None and known[0] == [*signed, *map(sign, known[1].files)]:
            rest_on(*known[1].files)
            return known[1]
        content, modified_s = path.read_bytes(), path.stat().st_mtime
        record = Record.decode(content, self.root)
        base = self._load_base(record.base)
        files = (*base.files, *list_model_files(*record.adapters, record.draft))
        bundle = replace(
            base,
            name=record.name,
            store=self.name,
            files=files,
            size_bytes=_sum_sizes(files) or base.size_bytes,
            digest=record.digest or hashlib.sha256(content).hexdigest(),
            modified_s=modified_s,
            base=record.base.name,
            **record.defined,
        )
        self._records.pop(path, None)
        signed += map(sign, files)
        # else its base may move, or a folder of adapters get other files
        if base.store == self.name and files and files == base.files and None not in signed:
            self._records[path] = signed, bundle
        return bundle

    def _load_base(self, base: Base) -> Bundle:
        rest_on(*base.files)
        if base.name and not (base.files and all(file.exists() for file in base.files)):
            found = self._find_in_bases(base.name)
            if found is not None and found.format is base.format:
                return found
        return Bundle(
            name=base.name or "",
            store=self.name,
            format=base.format,
            path=base.path,
            files=base.files,
            size_bytes=0,
            digest="",
            modified_s=0.0,
            quant=base.quant,
            projector=base.projector,
            hub_id=base.hub_id,
        )

    def _find_in_bases(self, name: str) -> Bundle | None:
        self._asked_bases = True
        try:
            ref = ModelRef.parse(name)
        except InvalidModelRef:  # an upstream may use any name
            return None
        return next((b for store in self._bases if (b := store.find(ref))), None)


def check_base(bundle: Bundle) -> None:
    """Raise BadModelFile if the files of a created model are missing."""
    if bundle.store != LocalStore.name or (bundle.files and all(f.exists() for f in bundle.files)):
        return
    base = f"'{bundle.base}'" if bundle.base else f"the file '{bundle.path}'"
    pull = f"pull its base again: vllama pull {bundle.base}, or " if bundle.base else ""
    raise BadModelFile(
        f"cannot use '{bundle.name}': its base, {base}, is missing",
        hint=f"{pull}remove it: vllama rm {bundle.name}",
    )


def _list_records(folder: Path) -> Iterator[Path]:
    return (path for path in list_files_below(folder) if path.suffix == ".json")


def _list_paths(bundle: Bundle) -> set[Path]:
    return {bundle.path, *bundle.files, *bundle.adapters}


def _sum_sizes(files: Sequence[Path]) -> int:
    try:
        return sum_real_sizes(files)
    except OSError:
        return 0


class Base(msgspec.Struct, omit_defaults=True):
    """The files of a base model; `name` is None for files without a name."""

    format: Format
    path: Path
    files: tuple[Path, ...] = ()
    name: str | None = None
    projector: Path | None = None
    quant: str | None = None
    hub_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Definition):
    """The content of one file; `digest` is that of a copy's original."""

    name: str
    base: Base
    digest: str | None = None

    @classmethod
    def decode(cls, content: bytes, folder: Path) -> Record:
        """Read a file of the data folder `folder`. Raises ValueError."""

        def read_path(kind: type, value: Any) -> Any:  # called for values of any kind, too
            return folder / value if kind is Path else value

        return msgspec.json.decode(content, type=cls, dec_hook=read_path)

    def encode(self, folder: Path) -> bytes:
        """Write the file for the data folder `folder`."""

        def write_path(path: Path) -> str:
            return str(path.relative_to(folder) if path.is_relative_to(folder) else path)

        values = {"name": self.name, "base": self.base, **self.given}
        values |= {"digest": self.digest} if self.digest else {}
        return (
            msgspec.json.format(msgspec.json.encode(values, enc_hook=write_path), indent=2) + b"\n"
        )


def _make_record(bundle: Bundle, name: str, digest: str | None) -> Record:
    own = set(list_model_files(*bundle.adapters, bundle.draft))
    base = Base(
        format=bundle.format,
        path=bundle.path,
        files=tuple(file for file in bundle.files if file not in own),
        name=bundle.base,
        projector=bundle.projector,
        quant=bundle.quant,
        hub_id=bundle.hub_id,
    )
    return Record(name=name, base=base, digest=digest, **bundle.defined)
