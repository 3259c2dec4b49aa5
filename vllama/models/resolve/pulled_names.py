"""The names under which models of the hub were pulled: `llama3.2:3b` → the bundle it resolved to.

A library name, or a repository without files of the right kind, is resolved when it is pulled. The
result is recorded here, so that the name finds the bundle again without the hub, and lists show
that name. One JSON file, `pulled.json`: canonical name → [name to show, name of the bundle]. Names
whose bundle is gone do no harm: they find nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from vllama.base import private
from vllama.base.errors import VllamaError
from vllama.models.disk import write_whole
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.types import Bundle

FILE_NAME = "pulled.json"
LOCK_LIMIT_S = 30.0


class PulledNames:
    """The names noted in `folder`; None notes them for this process only."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE_NAME if folder else None
        self._memory: Mapping[str, tuple[str, str]] = {}

    def note(self, ref: ModelRef, bundle: Bundle) -> Bundle:
        """Record the bundle of a name; return the bundle under the name to show."""
        shown = ref.display if ref.kind is Kind.LIBRARY else bundle.name
        with self._locked():
            self._write({**self._read(), ref.canonical: (shown, bundle.name)})
        return replace(bundle, name=shown)

    def meant_by(self, ref: ModelRef) -> tuple[str, str] | None:
        """Return (name to show, name of the bundle) recorded for `ref`, or None."""
        known = self._read()
        return next((known[name] for name in ref.candidates if name in known), None)

    def shown(self) -> dict[str, list[str]]:
        """Return the names to show of each bundle that has names, by its own in lower case."""
        names: dict[str, list[str]] = {}
        for shown, bundle in self._read().values():
            own = names.setdefault(bundle.lower(), [])
            if shown.lower() not in map(str.lower, own):
                own.append(shown)
        return names

    def list_asked(self, shown: str) -> list[str]:
        """Return the canonical names that were pulled and are shown as `shown`."""
        return [name for name, pair in self._read().items() if pair[0].lower() == shown.lower()]

    def forget(self, shown: str, bundle: str) -> bool:
        """Forget a shown name of a bundle; tell whether others of it are left."""
        with self._locked():
            known = self._read()
            kept = {
                name: pair
                for name, pair in known.items()
                if (pair[0].lower(), pair[1].lower()) != (shown.lower(), bundle.lower())
            }
            if len(kept) != len(known):
                self._write(kept)
        return any(pair[1].lower() == bundle.lower() for pair in kept.values())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the file against other pulls and removals. Raises VllamaError."""
        if self._path is None:
            yield
            return
        try:
            lock = self._path.with_name(f".{self._path.name}.lock")
            with private.lock_file(lock, LOCK_LIMIT_S):
                yield
        except OSError as error:
            raise VllamaError(
                f"cannot note the name in '{self._path}': {error.strerror}",
                hint="set VLLAMA_DATA_DIR to a folder that can be written",
            ) from error

    def _read(self) -> Mapping[str, tuple[str, str]]:
        if self._path is None:
            return self._memory
        try:
            entries = json.loads(self._path.read_bytes())
            return {str(name): (str(pair[0]), str(pair[1])) for name, pair in entries.items()}
        except (OSError, ValueError, AttributeError, IndexError, TypeError):
            return {}

    def _write(self, entries: Mapping[str, tuple[str, str]]) -> None:
        if self._path is None:
            self._memory = dict(entries)
            return
        write_whole(self._path, json.dumps(entries, indent=1).encode())
