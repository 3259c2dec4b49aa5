"""Secrets: the keys in a file, whether others can read one, and command lines without them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vllama.base.errors import ConfigError
from vllama.base.kinds import read_key

_FOR_OTHERS = 0o007


def read_keys(path: Path) -> tuple[str, ...]:
    """Return the keys of a file; what follows a `#` at the start of a word is a comment.

    Raises ConfigError for a file that cannot be read or has no key: a server that shall have
    keys must not start without.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(
            f'cannot read the keys in "{path}": {reason}', hint="use one key per line"
        ) from None
    keys = tuple(_keys_in(path, lines))
    if not keys:
        raise ConfigError(f'cannot use "{path}": it has no key', hint="use one key per line")
    return keys


def _keys_in(path: Path, lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        words = f" {line}".replace("\t", " ").partition(" #")[0].strip()
        if not words:
            continue
        try:
            yield read_key(words)
        except ValueError as error:
            raise ConfigError(
                f'cannot use the key in line {number} of "{path}": {error}',
                hint="use one key per line",
            ) from None


def explain_unsendable(token: str) -> str | None:
    """Return why a token cannot stand in a header, which takes one word of printable ASCII."""
    bad = next((sign for sign in token if not "!" <= sign <= "~"), None)
    if bad is None:
        return None
    known = {"\n": "it contains a line break", "\ufeff": "it starts with a byte-order mark"}
    if "\0" in token or "\udc80" <= bad <= "\udcff":  # bytes read with surrogateescape
        return "it is UTF-16, not UTF-8" if "\0" in token else "it is not UTF-8 text"
    return known.get(bad, f"it contains the character U+{ord(bad):04X}")


def open_to_others(path: Path) -> str | None:
    """Return a warning if a file with a secret can be read by every user of this machine."""
    try:
        mode = path.stat().st_mode
    except OSError:  # reading it will fail with a reason
        return None
    if not mode & _FOR_OTHERS:
        return None
    return f'other users of this machine can read the secret in "{path}"; run: chmod 600 {path}'


MASK = "***"
_SECRETS = frozenset({"key", "apikey", "token", "secret", "password", "credentials"})
_WORDS = re.compile(r"[-_.]+")


def mask(argv: Sequence[str]) -> list[str]:
    """Return a command line without the values of flags such as `--api-key`."""
    shown: list[str] = []
    hides_next = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        names_secret = flag.startswith("-") and not _SECRETS.isdisjoint(
            _WORDS.split(flag.lstrip("-").lower())
        )
        if hides_next and not word.startswith("--"):
            shown.append(MASK)
        else:
            shown.append(f"{flag}={MASK}" if names_secret and equals else word)
        hides_next = names_secret and not equals
    return shown
