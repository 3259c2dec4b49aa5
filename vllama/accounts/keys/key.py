"""A key of the server: who shows it, what it allows, and until when."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from vllama.accounts.keys.amounts import Rate

PREFIX = "sk-"
LATEST = ":latest"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
MAX_PRIORITY = 100
SHOWN_CHARACTERS = 4
LEAST_SECRET_CHARACTERS = 12
"""The characters shown of a shorter key would give too much of it away."""
SKEW_S = 300.0
"""So far behind the clock of who rotated a key that of a server may be."""


class Scope(StrEnum):
    """What a key may do; `ADMIN` includes the others."""

    INFER = "infer"
    READ = "read"
    ADMIN = "admin"


class Replaced(Struct, frozen=True, kw_only=True):
    """The secret that a key had until it was rotated, which goes on working for a while."""

    digest: str
    shown: str
    since_s: float
    until_s: float

    def works(self, now_s: float) -> bool:
        """Return whether it is accepted. A clock that is set back far does not prolong it."""
        return self.since_s - SKEW_S <= now_s < self.until_s


class Key(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key; of a named one the secret itself is not kept.

    `digest` is that of `digest_secret`, `shown` are the characters by which its owner recognises
    it. `models` are patterns, () allows all. `tokens` are those of a `tokens_period`, as in `Rate`.
    `priority` is the number of turns that its waiting requests get for each turn of a key with
    priority 1. Times are Unix seconds; None: never. `owner` identifies what its requests leave
    behind, such as stored responses; it survives a rotation, but not the end of the key. `replaced`
    is the secret before this one; the same key by that secret has its `digest`.
    """

    name: str
    digest: str
    shown: str = ""
    scopes: tuple[Scope, ...] = (Scope.INFER,)
    models: tuple[str, ...] = ()
    rate: Rate | None = None
    tokens: int | None = None
    tokens_period: Literal["min", "day", "month"] = "day"
    concurrent: int | None = None
    priority: int = 1
    created_s: float = 0.0
    expires_s: float | None = None
    revoked_s: float | None = None
    owner: str = ""
    replaced: Replaced | None = None

    @property
    def identity(self) -> str:
        """What its limits are counted by: its name may have been that of another key before."""
        return self.owner or self.name

    def allows(self, scope: Scope) -> bool:
        """Return whether the key may do what needs `scope`."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def may_use(self, *names: str) -> bool:
        """Return whether the key may use a model that has one of `names`."""
        return not self.models or any(
            fnmatchcase(form, pattern.lower())
            for name in names
            for form in {name.lower(), name.lower().removesuffix(LATEST)}
            for pattern in self.models
        )

    def find_fault(self, now_s: float) -> str | None:
        """Return why the key is not accepted any more; None if it is."""
        if self.revoked_s is not None:
            return f"the key '{self.name}' has been revoked"
        if self.expires_s is not None and now_s >= self.expires_s:
            return f"the key '{self.name}' has expired"
        if (old := self.replaced) and old.digest == self.digest and not old.works(now_s):
            return f"the key '{self.name}' has been rotated"
        return None


def index_keys(keys: Iterable[Key]) -> dict[str, Key]:
    """Return keys by the digests of all their secrets."""
    found: dict[str, Key] = {}
    for key in keys:
        if (old := key.replaced) is not None:
            found[old.digest] = replace(key, digest=old.digest, shown=old.shown)
        found[key.digest] = key
    return found


def make_plain_keys(plain: tuple[str, ...]) -> Mapping[str, Key]:
    """Return the keys of `--api-key`, which may do everything, by digest."""
    made = (
        Key(
            name=mask_secret(secret),
            digest=digest_secret(secret),
            scopes=(Scope.ADMIN,),
            owner=hashlib.blake2b(secret.encode(), digest_size=16).hexdigest(),
        )
        for secret in plain
    )
    return {key.digest: key for key in made}


def make_secret() -> str:
    """Return a new secret with 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_secret(secret: str) -> str:
    """Return the SHA-256 of a secret, in hexadecimal digits.

    The slow digests for passwords defend short secrets against guessing. These secrets have 256
    random bits, so nothing can be guessed, and each request has to pay for the digest.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def mask_secret(secret: str) -> str:
    """Return so much of a secret that its owner recognises it."""
    return "…" + (secret[-SHOWN_CHARACTERS:] if len(secret) >= LEAST_SECRET_CHARACTERS else "")
