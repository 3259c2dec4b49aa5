"""Writes settings files of other tools, and restores what was there before the first write.

Layout below the folder of a tool::

    record.json       which files were written, whether they were there, what was written
    <n>-<name>        each file as it was, byte for byte
    <n>-<name>.mine   a file that somebody changed after us, as it was when it was put back

The order is: copy, record, write. So a crash at any point leaves a state that `restore` can undo.
"""

from __future__ import annotations

import contextlib
import hashlib
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vllama.base import private
from vllama.base.errors import VllamaError
from vllama.cli.launch.types import Edit, HasComments

_BOM = "\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A file's bytes before and after; None: there is no such file.

    `lines` are what the user has to add to a file that we cannot change.
    """

    path: Path
    before: bytes | None
    after: bytes | None
    lines: str = ""

    @property
    def differs(self) -> bool:
        """True if anything changes."""
        return self.before != self.after


class _File(msgspec.Struct):
    """A file that we wrote. `copy` is None if it was not there; `made` are folders we made.

    `mode` are its permissions before, None in a record of an earlier version.
    """

    path: str
    written: str
    copy: str | None = None
    made: tuple[str, ...] = ()
    mode: int | None = None


class _Record(msgspec.Struct):
    files: list[_File] = []


def plan(edit: Edit) -> Change:
    """Compute what an edit changes, without writing. Raises VllamaError."""
    path = edit.path
    before = _read(path)
    try:
        text = (before or b"").decode()
        mark = _BOM if text.startswith(_BOM) else ""
        after = (mark + edit.change(text.removeprefix(_BOM))).encode()
    except HasComments:
        return Change(path=path, before=before, after=before, lines=edit.change(""))
    except ValueError as error:  # a UnicodeDecodeError is one too
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        raise VllamaError(
            f"cannot change '{path}': {reason}",
            hint="fix it, or move it away; nothing was changed",
        ) from None
    return Change(path=path, before=before, after=after)


class Keeper:
    """Writes one tool's files and keeps the originals below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._record_file = folder / "record.json"

    def state(self) -> str:
        """Return "" (nothing written), "written", or "changed since" (by somebody else)."""
        files = self._record().files
        same = all(_digest(_read(Path(file.path))) == file.written for file in files)
        return ("written" if same else "changed since") if files else ""

    def write(self, changes: Sequence[Change], *, has_key: bool = False) -> None:
        """Write the files; those that have a key are for this user only.

        Raises VllamaError; files that were written before the error stay.
        """
        for change in changes:
            assert change.after is not None  # an edit gives text
            record = self._record()
            known = next((f for f in record.files if f.path == str(change.path)), None)
            if known is None:
                made = (str(folder) for folder in change.path.parents if not folder.exists())
                known = _File(str(change.path), written="", made=tuple(made))
                if change.before is not None:
                    known.copy = f"{len(record.files)}-{change.path.name}"
                    known.mode = stat.S_IMODE(change.path.stat().st_mode)
                    _write(self.folder / known.copy, change.before)
                record.files.append(known)
            known.written = _digest(change.after)
            self._save(record)
            _write(change.path, change.after, private.FILE if has_key else None)

    def undo(self) -> list[Change]:
        """Compute what `restore` would change, without writing."""
        return [self._undo(file) for file in self._record().files]

    def restore(self) -> list[Path]:
        """Restore every file as it was before the first `write`, then delete the originals.

        Returns copies of the files that somebody else has changed since: those are kept.
        """
        record, kept = self._record(), []
        for file in list(record.files):
            change = self._undo(file)
            now = change.before
            if now is not None and change.differs and _digest(now) != file.written:
                kept.append(self.folder / f"{file.copy or change.path.name}.mine")
                _write(kept[-1], now)
            if change.after is None:
                _delete(change.path, file.made)
            elif change.differs:
                _write(change.path, change.after, file.mode)
            record.files.remove(file)
            self._save(record)
            if file.copy is not None:
                _delete(self.folder / file.copy)
        _delete(self._record_file, (self.folder,))
        return kept

    def _undo(self, file: _File) -> Change:
        path, original = Path(file.path), None
        if file.copy is not None and (original := _read(self.folder / file.copy)) is None:
            reason = f"'{self.folder / file.copy}' does not exist"
            raise VllamaError(f"cannot restore '{path}': {reason}")
        return Change(path=path, before=_read(path), after=original)

    def _record(self) -> _Record:
        content = _read(self._record_file)
        try:
            return _Record() if content is None else msgspec.json.decode(content, type=_Record)
        except ValueError as error:
            raise VllamaError(f"cannot read '{self._record_file}': {error}") from None

    def _save(self, record: _Record) -> None:
        _write(self._record_file, msgspec.json.format(msgspec.json.encode(record)))


def _digest(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def _explained(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise VllamaError(f"cannot {verb} '{path}': {error.strerror or error}") from error


def _read(path: Path) -> bytes | None:
    with _explained("read", path):
        return path.read_bytes() if path.exists() else None


def _write(path: Path, content: bytes, mode: int | None = None) -> None:
    """Replace a file atomically; without a `mode` it keeps its own, and a new file is private.

    Links are followed: many people keep their settings in a repository of their own.
    """
    with _explained("write", path):
        real = path.resolve()
        real.parent.mkdir(parents=True, exist_ok=True)
        if mode is None:
            mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else private.FILE
        private.replace(real, content, mode=mode, sync=True)


def _delete(path: Path, folders: Iterable[str | Path] = ()) -> None:
    """Delete a file, and folders unless somebody else uses them by now."""
    with _explained("delete", path):
        path.unlink(missing_ok=True)
    for folder in folders:
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
