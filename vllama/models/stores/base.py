"""Interface of a store of models, and the digest that stores give a model."""

from __future__ import annotations

import hashlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from vllama.base.errors import VllamaError
from vllama.base.left_out import FAULTS, explain, note, show_path
from vllama.models.lookup import Watch, current, rest_on
from vllama.models.names.ref import ModelRef
from vllama.models.types import Bundle, Skipped

MAX_LIST_PATHS = 100_000  # of a list that is used again; to look at so many takes 0.2 s


class Store(ABC):
    """A place with models, on this disk unless it `is_elsewhere`."""

    name: str
    """As in `Bundle.store`."""
    is_elsewhere = False
    roots: Sequence[Path] = ()
    """The folders that may be missing, but not unreadable."""
    is_watched = True
    """False if more than files of this disk decides what it has."""
    _last: tuple[Watch, Sequence[Bundle | Skipped]] | None = None

    @abstractmethod
    def read_all(self) -> Iterable[Bundle | Skipped]:
        """Yield all models; one that cannot be served is `Skipped`, and costs no other."""

    def _read_if_changed(self) -> Sequence[Bundle | Skipped]:
        """Return all models, read again only if something changed that they rest on."""
        if not self.is_watched:
            return tuple(self._read_safely())
        (watch, found), outer = self._last or (None, ()), current()
        if watch is not None and outer is not None and outer.rests_on(watch):
            return found
        if watch is None or not watch.holds():
            with Watch(MAX_LIST_PATHS) as watch:
                found = tuple(self._read_safely())
                for each in found:
                    rest_on(*(each.files if isinstance(each, Bundle) else ()))
            self._last = watch, found
        if outer is not None:
            outer.rest_on(watch)
        return found

    def _read_safely(self) -> Iterator[Bundle | Skipped]:
        for root in self.roots:
            yield from self.attempt(root.name, root, partial(_enter, root))
        try:
            yield from self.read_all()
        except OSError as error:  # of a drive that fails
            yield self.skip(self.name, Path(error.filename or self.name), explain(error))

    def list(self) -> list[Bundle]:
        """Return all complete models, of equal names the first; log once what is left out."""
        found: dict[str, Bundle] = {}
        for each in self._read_if_changed():
            if isinstance(each, Bundle):
                found.setdefault(each.name, each)
            else:  # no warning: many are another program's business
                note(f"{each.name} ({each.store}, {each.path})", each.reason, logging.INFO)
        return [*found.values()]

    def attempt(
        self, name: str, path: Path, read: Callable[[], Bundle | None]
    ) -> Iterator[Bundle | Skipped]:
        """Yield the model that `read` returns, or why there is none though its `path` is there."""
        rest_on(path)
        try:
            if (bundle := read()) is not None:
                yield bundle
        except FAULTS as error:
            if os.path.lexists(path):
                yield self.skip(name, path, explain(error))

    def skip(self, name: str, path: Path, reason: str) -> Skipped:
        """Return a model as left out, with a name and path that can be shown."""
        shown = Path(show_path(path))
        return Skipped(name=show_path(name), store=self.name, path=shown, reason=reason)

    @abstractmethod
    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model with the name `ref`, or None."""

    def find_link(self, text: str) -> Bundle | None:
        """Return the model of a link to a server that the user named, None if it is none."""
        return None

    def list_skipped(self) -> tuple[Skipped, ...]:
        """Return the models that cannot be served and are not listed, with the reasons."""
        return tuple(each for each in self._read_if_changed() if isinstance(each, Skipped))

    def keeps(self, bundle: Bundle) -> tuple[str, str] | None:
        """Return (why vllama does not delete a model, what the user can do); None if it does."""
        return None


def _enter(folder: Path) -> None:
    os.scandir(folder).close()


class RemovingStore(Store):
    """A store that vllama may delete from."""

    @abstractmethod
    def remove(self, bundle: Bundle) -> int:
        """Delete a model; return the freed bytes. Raises VllamaError."""


@contextmanager
def map_removal_errors(bundle: Bundle, hint: str | None = None) -> Iterator[None]:
    """Turn what the disk refuses during a removal into a VllamaError."""
    try:
        yield
    except OSError as error:
        text = f"cannot remove '{bundle.name}': {error.strerror or error}"
        raise VllamaError(text, hint=hint) from error


def compute_digest(lines: Iterable[tuple[str, str, int]]) -> str:
    """Return the SHA-256 of a canonical text of (file name, identity, size) lines.

    The identity is a checksum if the store knows one, so that equal models have equal digests.
    Computing checksums would make listing slow, since it would read gigabytes.
    """
    text = "".join(f"{name}\t{identity}\t{size}\n" for name, identity, size in sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()


def sum_real_sizes(paths: Iterable[Path]) -> int:
    """Return the sum of the sizes of the files, following links and counting each file once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in paths:
        status = path.stat()
        sizes[(status.st_dev, status.st_ino)] = status.st_size
    return sum(sizes.values())
