"""The file of the named keys: written by `vllama keys`, read by the server whenever it changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from vllama.accounts.keys.key import Key, index_keys
from vllama.base import private
from vllama.base.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")

LOCK_LIMIT_S = 10.0

Signature = tuple[int, int, int]
"""Inode, size and time of change in ns: a replaced file differs in the first."""


class KeyFile(msgspec.Struct, frozen=True):
    """The content of the file. `open`: requests need no key, as before there was any."""

    keys: tuple[Key, ...] = ()
    version: int = 1
    open: bool = False


NO_FILE = KeyFile(open=True)


def read_file(path: Path) -> KeyFile:
    """Return the content of a file; without one the server is open. Raises ConfigError."""
    try:
        with private.open_file(path) as file:
            return msgspec.json.decode(file.read(), type=KeyFile)
    except FileNotFoundError:
        return NO_FILE
    except OSError as error:
        raise ConfigError(
            f"cannot read the keys in '{path}': {error.strerror or error}",
            hint="run the command as the user of the server",
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the keys in '{path}': {error}",
            hint="restore the file, or remove it and add the keys again",
        ) from None


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of a file; none if it does not exist. Raises ConfigError."""
    return read_file(path).keys


def wants_keys(path: Path) -> bool:
    """Tell whether a server that starts with this file needs keys, or does not start."""
    try:
        return not read_file(path).open
    except ConfigError:
        return True


def change_keys(path: Path, change: Callable[[dict[str, Key]], T], *, opens: bool = False) -> T:
    """Have `change` modify the keys by name, and write them; return what it returns.

    With `opens`, requests need no key until a key is added. Other commands wait meanwhile,
    and no reader sees half of a change. Raises ConfigError, and what `change` raises.
    """
    try:
        with private.lock_file(path.with_suffix(".lock"), LOCK_LIMIT_S):
            before = read_file(path)
            keys = {key.name: key for key in before.keys}
            changed = change(keys)
            is_open = opens or (before.open and keys.keys() <= {key.name for key in before.keys})
            content = msgspec.json.encode(KeyFile(tuple(keys.values()), open=is_open))
            private.replace(path, msgspec.json.format(content, indent=2) + b"\n")
        return changed
    except OSError as error:
        raise ConfigError(
            f"cannot write the keys in '{path}': {error.strerror or error}",
            hint="run the command as the user of the server",
        ) from None


class WatchedKeys:
    """The keys of a file by digest; a change of the file is noticed by the next `get`.

    A file that can no longer be read, or that vanishes, changes nothing: a server that wanted keys
    must not be open to everybody because of that.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file exists and cannot be read."""
        self._path = path
        self._signature = self._read_signature()
        self._use(read_file(path))

    def get(self) -> dict[str, Key]:
        """Return the keys by digest."""
        signature = self._read_signature()
        if signature != self._signature:
            self._signature = signature
            self._read_again()
        return self._keys

    def _read_again(self) -> None:
        try:
            content = read_file(self._path)
        except ConfigError as error:
            log.error("the keys stay as they were: %s", error.sentence())
            return
        if content is NO_FILE:
            log.error("the keys stay as they were: '%s' is gone", self._path)
            return
        self._use(content)
        told = "requests need one" if not content.open else "requests need none"
        log.info("keys read again: %d in '%s'; %s", len(content.keys), self._path, told)

    def _use(self, content: KeyFile) -> None:
        self._keys, self.is_open = index_keys(content.keys), content.open

    def _read_signature(self) -> Signature | None:
        try:
            status = os.stat(self._path)  # noqa: PTH116 - runs for each request, and is quicker
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
