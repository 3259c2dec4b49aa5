"""The layout of Ollama's model store, which vllama shares, and the registry of a name.

::

    <models>/manifests/<host>/<namespace>/<model>/<tag>      JSON, see `manifest`
             blobs/sha256-<hex>                              (older: sha256:<hex>)
             .vllama/…                                       ours: unfinished blobs, locks, marks

Ollama deletes unknown files from `blobs` when it starts, so vllama has a folder of its own. A mark
in it records a manifest that vllama wrote. Paths and files only; no network.

A name refers to a registry with Ollama's protocol if it says so (`ollama://model`), contains a
host (`host/namespace/model`), or is a library name and the settings name a registry for those.
Plain http is allowed to this machine, to a registry that is configured with it, and for pulls that
ask for it (Ollama's `insecure`). See docs/reference/ollama-api.md#names.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vllama.base import private
from vllama.base.errors import BadRequest, ConfigError, InvalidModelRef, VllamaError
from vllama.base.left_out import note, show_path
from vllama.models.disk import LOCK_LIMIT_S, BlobStorage, remove_empty, remove_older, write_shared
from vllama.models.lookup import rest_on
from vllama.models.names.ref import DEFAULT_HOST, Kind, ModelRef
from vllama.models.ollama.manifest import find_digests

ABANDONED_S = 14 * 24 * 3600.0
LOCK_MODE = 0o660
"""For the users of a shared store; whoever else may open a lock may hold it."""


class OllamaModels(BlobStorage):
    """A store with this layout; also the target of downloads."""

    variable = "OLLAMA_MODELS"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifests = folder / "manifests"
        self._own = folder / ".vllama"

    def prepare(self) -> None:
        """Create the folders, and delete abandoned downloads. Raises OSError."""
        for folder in (self._manifests, self.folder / "blobs", self._own):
            folder.mkdir(parents=True, exist_ok=True)
        remove_older(self._own.glob("sha256-*.partial*"), ABANDONED_S)
        remove_older(self._own.glob(".*"))  # of `write_shared`

    # -- blobs --------------------------------------------------------------------------------

    def blob(self, etag: str) -> Path:
        path, older = _blob_paths(self.folder, etag)
        return older if not path.exists() and older.exists() else path

    def partial(self, etag: str) -> Path:
        return self._own / f"sha256-{etag}.partial"

    def lock(self, etag: str) -> Path:
        return self._own / f"sha256-{etag}.lock"

    def prune(self, digests: Iterable[str]) -> int:
        """Delete the given blobs unless a manifest names them; return the freed bytes.

        The caller holds the lock. If any manifest cannot be read, nothing is deleted.
        """
        used: set[str] = set()
        for path in self._list_manifests():
            try:
                used |= find_digests(path.read_bytes())
            except FileNotFoundError:
                continue
            except OSError:
                return 0
        return sum(
            _delete(path)
            for digest in set(digests) - used
            for path in _blob_paths(self.folder, digest)
        )

    # -- manifests ----------------------------------------------------------------------------

    def names(self, model: str | None = None) -> Iterator[ModelRef]:
        """Yield the full names of all manifests, or of `model`'s, in order, spelled as in paths."""
        for path in self._list_manifests(model):
            try:
                yield ModelRef.of_parts(*path.relative_to(self._manifests).parts)
            except InvalidModelRef:
                note(show_path(path), "its path is not a valid model name", logging.INFO)

    def _list_manifests(self, model: str | None = None) -> list[Path]:
        found = [self._manifests]
        for wanted in (None, None, model and model.lower(), None):  # host, namespace, model, tag
            rest_on(*found)
            inside = [(folder, name) for folder in found for name in _list_names(folder)]
            found = [folder / name for folder, name in inside if wanted in (None, name.lower())]
        return sorted(found)

    def match_spelling(self, name: ModelRef) -> ModelRef:
        """Return a name in the spelling on disk, which may have another case."""
        if self.manifest(name).exists():
            return name
        return next((n for n in self.names() if n.canonical == name.canonical), name)

    def manifest(self, name: ModelRef) -> Path:
        """Return the file of a manifest."""
        return self._manifests.joinpath(*name.parts)

    def write_manifest(self, name: ModelRef, content: bytes) -> None:
        """Make a model visible, atomically. Raises OSError. The caller holds the lock.

        If another program wrote the old manifest, the new one does not count as vllama's either.
        """
        path = self.manifest(name)
        ours = not path.exists() or self.is_ours(name, path.read_bytes())
        if ours:
            mark = hashlib.sha256(content).hexdigest().encode()
            write_shared(self._mark(name), mark, by=self._own)
        # written in our folder first: Ollama takes every file among its manifests for one
        write_shared(path, content, by=self._own)

    def is_ours(self, name: ModelRef, content: bytes) -> bool:
        """Return whether vllama wrote exactly this manifest."""
        try:
            mark = self._mark(name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return False
        return mark == hashlib.sha256(content).hexdigest()

    def delete_manifest(self, name: ModelRef) -> int:
        """Delete a manifest; return its size. Raises OSError. The caller holds the lock."""
        path, mark = self.manifest(name), self._mark(name)
        size = path.stat().st_size
        path.unlink()
        mark.unlink(missing_ok=True)
        remove_empty(path.parent, self._manifests)
        remove_empty(mark.parent, self._own)
        return size

    def _mark(self, name: ModelRef) -> Path:
        return self._own.joinpath("pulled", *name.parts)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other pulls and removals by vllama. Raises VllamaError, OSError."""
        self._own.mkdir(parents=True, exist_ok=True)
        try:
            with private.lock_file(self._own / "store.lock", LOCK_LIMIT_S, LOCK_MODE):
                yield
        except BlockingIOError:
            raise VllamaError(
                f"cannot change the models in {self.folder}: another process is changing them",
                hint="try again when it has finished",
            ) from None


def _list_names(folder: Path) -> list[str]:
    """Return what is in a folder, but for hidden files; nothing for what is no folder."""
    with contextlib.suppress(OSError):
        return [name for name in os.listdir(folder) if not name.startswith(".")]  # noqa: PTH208
    return []


def _blob_paths(folder: Path, digest: str) -> tuple[Path, Path]:
    return folder / "blobs" / f"sha256-{digest}", folder / "blobs" / f"sha256:{digest}"


def _delete(path: Path) -> int:
    """Delete a file; return the freed bytes, 0 for a link or one of several hard links."""
    try:
        status = path.lstat()
        path.unlink()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0


SCHEME = "ollama://"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryTarget:
    """A model at a registry; `address` has no trailing slash.

    `asked`: the name itself refers to the registry.
    """

    name: ModelRef
    address: str
    asked: bool


def find_target(
    ref: ModelRef, registry: str | None, *, insecure: bool = False
) -> RegistryTarget | None:
    """Return the registry from which `ref` is pulled with Ollama's protocol, None if from none.

    `registry` is the one from the settings, for names without a host. Raises BadRequest for plain
    http that is not allowed, and ConfigError for an invalid setting.
    """
    text = ref.text.lower()
    if ref.kind is not Kind.LIBRARY:
        return None
    asked = text.startswith(SCHEME) or ref.host is not None
    if not asked and registry is None:
        return None
    host = ref.parts[0]
    if registry is not None and host.lower() == DEFAULT_HOST:
        return RegistryTarget(name=ref, address=_normalize_address(registry), asked=asked)
    if text.startswith("http://") and not (insecure or _is_this_machine(host)):
        raise BadRequest("insecure protocol http", hint="to allow it: vllama pull --insecure")
    plain = insecure or (_is_this_machine(host) and not text.startswith("https://"))
    address = f"{'http' if plain else 'https'}://{host}"
    return RegistryTarget(name=ref, address=address, asked=asked)


def _normalize_address(registry: str) -> str:
    if "://" not in registry:
        registry = f"{'http' if _is_this_machine(registry) else 'https'}://{registry}"
    parts = urlsplit(registry.rstrip("/"))
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            f"cannot use ollama_registry '{registry}': not a registry address",
            hint="use a host, or an address such as https://registry.example",
        )
    return parts.geturl()


def _is_this_machine(host: str) -> bool:
    """Return whether `host[:port]` is this machine."""
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
