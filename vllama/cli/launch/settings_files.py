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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vllama.base import private
from vllama.base.errors import VllamaError
from vllama.cli.launch.types import Edit

_BOM = "\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A file's bytes before and after; None: there is no such file."""

    path: Path
    before: bytes | None
    after: bytes | None

    @property
    def is_one(self) -> bool:
        """Tell whether anything changes."""
        return self.before != self.after


class _File(msgspec.Struct, frozen=True):
    """A file that we wrote. `copy` is None if it was not there; `made` are folders we made."""

    path: str
    written: str
    copy: str | None = None
    made: tuple[str, ...] = ()


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
    except ValueError as error:  # a UnicodeDecodeError is one too
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        raise VllamaError(
            f"cannot change '{path}': {reason}",
            hint="mend it, or move it away; nothing was changed",
        ) from None
    return Change(path=path, before=before, after=after)


class Keeper:
    """Writes one tool's files and keeps the originals below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def state(self) -> str:
        """Return "" (nothing written), "written", or "changed since" (by somebody else)."""
        files = self._record().files
        same = all(_digest(_read(Path(file.path))) == file.written for file in files)
        return ("written" if same else "changed since") if files else ""

    def write(self, changes: Sequence[Change]) -> None:
        """Write the files. Raises VllamaError; files that were written before the error stay."""
        for change in changes:
            assert change.after is not None  # an edit gives text
            record = self._record()
            known = next((f for f in record.files if f.path == str(change.path)), None)
            if known is None:
                known = self._copied(len(record.files), change)
                record.files.append(known)
            at = record.files.index(known)
            record.files[at] = msgspec.structs.replace(known, written=_digest(change.after))
            self._save(record)
            _write(change.path, change.after)

    def undo(self) -> list[Change]:
        """Compute what `restore` would change, without writing."""
        return [
            Change(path=Path(file.path), before=_read(Path(file.path)), after=self._original(file))
            for file in self._record().files
        ]

    def restore(self) -> list[Path]:
        """Restore every file as it was before the first `write`, then delete the originals.

        Returns copies of the files that somebody else has changed since: those are kept.
        """
        record, kept = self._record(), []
        for file in list(record.files):
            path, original = Path(file.path), self._original(file)
            current = _read(path)
            if current is not None and current != original and _digest(current) != file.written:
                mine = self.folder / f"{file.copy or path.name}.mine"
                _write(mine, current)
                kept.append(mine)
            if original is None:
                _delete(path)
                for folder in file.made:
                    with contextlib.suppress(OSError):  # somebody else uses it by now
                        Path(folder).rmdir()
            elif current != original:
                _write(path, original)
            record.files.remove(file)
            self._save(record)
            if file.copy is not None:
                _delete(self.folder / file.copy)
        _delete(self.folder / "record.json")
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        return kept

    def _copied(self, number: int, change: Change) -> _File:
        made: list[str] = []
        folder = change.path.parent
        while not folder.exists():
            made.append(str(folder))
            folder = folder.parent
        copy = None
        if change.before is not None:
            copy = f"{number}-{change.path.name}"
            _write(self.folder / copy, change.before)
        return _File(path=str(change.path), written="", copy=copy, made=tuple(made))

    def _original(self, file: _File) -> bytes | None:
        if file.copy is None:
            return None
        content = _read(self.folder / file.copy)
        if content is None:
            reason = f"'{self.folder / file.copy}' is gone"
            raise VllamaError(f"cannot put back '{file.path}': {reason}")
        return content

    def _record(self) -> _Record:
        path = self.folder / "record.json"
        content = _read(path)
        if content is None:
            return _Record()
        try:
            return msgspec.json.decode(content, type=_Record)
        except msgspec.DecodeError as error:
            raise VllamaError(f"cannot read '{path}': {error}") from None

    def _save(self, record: _Record) -> None:
        _write(self.folder / "record.json", msgspec.json.format(msgspec.json.encode(record)))


def _digest(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VllamaError(f"cannot read '{path}': {error.strerror or error}") from error


def _write(path: Path, content: bytes) -> None:
    """Replace a file atomically and keep its permissions; a new file is for this user only.

    Links are followed: many people keep their settings in a repository of their own.
    """
    try:
        real = path.resolve()
        real.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else private.FILE
        private.write_through(real.parent, real, content, mode)
    except OSError as error:
        raise VllamaError(f"cannot write '{path}': {error.strerror or error}") from error


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise VllamaError(f"cannot delete '{path}': {error.strerror or error}") from error
