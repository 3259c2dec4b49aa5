"""Files with secrets: the keys of the server, one a line; and whether others can read one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vllama.base.errors import ConfigError
from vllama.config import parse

_FOR_OTHERS = 0o007


def read_keys(path: Path) -> tuple[str, ...]:
    """Return the keys of a file; what follows a `#` at the start of a word is a comment.

    Raises ConfigError for a file that cannot be read or has no key: a server that shall have
    keys must not start without.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(
            f'cannot read the keys in "{path}": {reason}', hint="write one key a line"
        ) from None
    keys = tuple(_keys_in(path, lines))
    if not keys:
        raise ConfigError(f'cannot use "{path}": it has no key', hint="write one key a line")
    return keys


def _keys_in(path: Path, lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        words = f" {line}".replace("\t", " ").partition(" #")[0].strip()
        if not words:
            continue
        try:
            yield parse.key(words)
        except ValueError as error:
            raise ConfigError(
                f'cannot use the key in line {number} of "{path}": {error}',
                hint="write one key a line",
            ) from None


def open_to_others(path: Path) -> str | None:
    """Return a warning if a file with a secret can be read by every user of this machine."""
    try:
        mode = path.stat().st_mode
    except OSError:  # reading it will fail with a reason
        return None
    if not mode & _FOR_OTHERS:
        return None
    return f'every user of this machine can read the secret in "{path}"; run: chmod 600 {path}'
