"""The file of the named keys: written by `vllama keys`, read by the server whenever it changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from vllama import private
from vllama.errors import ConfigError
from vllama.keys.key import Key

log = logging.getLogger(__name__)

LOCK_LIMIT_S = 10.0

Signature = tuple[int, int, int]
"""Inode, size and time of change in ns: a replaced file differs in the first."""


class KeyFile(msgspec.Struct, frozen=True):
    """The content of the file."""

    keys: tuple[Key, ...] = ()
    version: int = 1


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of a file; none if it does not exist. Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeyFile).keys
    except FileNotFoundError:
        return ()
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


def change_keys(path: Path, change: Callable[[dict[str, Key]], Key]) -> Key:
    """Have `change` modify the keys by name, and write them; return what it returns.

    Other commands wait meanwhile, and no reader sees half of a change. Raises ConfigError, and what
    `change` raises.
    """
    from filelock import FileLock, Timeout  # only commands need it

    try:
        private.make_folder(path.parent)
        lock = FileLock(path.with_suffix(".lock"), timeout=LOCK_LIMIT_S, mode=private.FILE)
        with lock:
            keys = {key.name: key for key in read_keys(path)}
            changed = change(keys)
            content = msgspec.json.encode(KeyFile(tuple(keys.values())))
            private.replace(path, msgspec.json.format(content, indent=2) + b"\n")
            _give_to_owner(path)
            _give_to_owner(path.with_suffix(".lock"))
        return changed
    except (OSError, Timeout) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot write the keys in '{path}': {reason}",
            hint="run the command as the user of the server",
        ) from None


def _give_to_owner(path: Path) -> None:
    """Let the owner of the folder have a file that root has written, or a server cannot read it."""
    owner = path.parent.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.chown(path, owner.st_uid, owner.st_gid)


class WatchedKeys:
    """The keys of a file by digest; a change of the file is noticed by the next `get`.

    A file that can no longer be read, or that vanishes, changes nothing: a server that wanted keys
    must not be open to everybody because of that.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file exists and cannot be read."""
        self._path = path
        self._signature = self._read_signature()
        self._keys = {key.digest: key for key in read_keys(path)}
        self.exists = self._signature is not None

    def get(self) -> dict[str, Key]:
        """Return the keys by digest."""
        signature = self._read_signature()
        if signature != self._signature:
            self._signature = signature
            self._read_again()
        return self._keys

    def _read_again(self) -> None:
        if self._signature is None:
            log.error("the keys stay as they were: '%s' is gone", self._path)
            return
        try:
            self._keys = {key.digest: key for key in read_keys(self._path)}
            self.exists = True
            log.info("keys read again: %d in '%s'", len(self._keys), self._path)
        except ConfigError as error:
            log.error("the keys stay as they were: %s", error.sentence())

    def _read_signature(self) -> Signature | None:
        try:
            status = os.stat(self._path)  # noqa: PTH116 - runs for each request, and is quicker
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
