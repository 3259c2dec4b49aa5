"""Command lines as they are shown: without secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
