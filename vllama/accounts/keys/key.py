"""A key of the server: who shows it, what it allows, and until when."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from vllama.accounts.usage.money import MoneyLimit

PREFIX = "sk-"
LATEST = ":latest"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
CLIENT_HEADER = b"x-vllama-key"
"""With it the head of a cluster tells its nodes whose request it forwards; see `act_for`."""
USER_HEADERS = (b"x-forwarded-email", b"x-forwarded-user")
"""In these, the first that has one, a proxy names the user who is signed in; see `act_for_user`."""
MAX_USER = 254  # characters of an address, RFC 5321
FORWARDED = b"x-vllama-forwarded"
"""Marks what the head of a cluster asks: whoever gets it answers for itself."""
SEED_HEADER = b"x-vllama-seed"
"""With it a head asks several nodes for one response: of the same seeds, with the same ids."""
REPLAYS_HEADER = "x-vllama-replays"
"""With it a node names model, engine and build, of which others give an equal response."""
USAGE_HEADER, FAILURE_HEADER = "x-vllama-usage", "x-vllama-failure"
"""With them a node tells the head the tokens of a response, and why it has failed.

Those of a response in chunks are trailers (RFC 9112, section 7.1.2).
"""
MAX_PRIORITY = 100
SHOWN_CHARACTERS = 4
LEAST_SECRET_CHARACTERS = 12
"""The characters shown of a shorter key would give too much of it away."""
SKEW_S = 300.0
"""So far behind the clock of who rotated a key that of a server may be."""


DAY_S = 86_400.0
MONTH = "month"
_PERIODS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": DAY_S}
_PERIOD_NAMES = {
    **dict.fromkeys(("s", "sec", "second"), "s"),
    **dict.fromkeys(("m", "min", "minute"), "min"),
    **dict.fromkeys(("h", "hour"), "h"),
    **dict.fromkeys(("d", "day"), "day"),
}
_MULTIPLES = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_AGES_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}
_MAX_AGE_S = 36_500 * DAY_S
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmg]?)", re.IGNORECASE)
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", re.IGNORECASE)


class Rate(Struct, frozen=True):
    """At most `count` requests within any `period`: `s`, `min`, `h` or `day`.

    Tokens are limited so too: within any `min`, or by `day` or `month` of the calendar (UTC).
    """

    count: int
    period: str

    @property
    def period_s(self) -> float:
        """The length of the period in seconds."""
        return _PERIODS_S[self.period]

    def __str__(self) -> str:
        return f"{format_count(self.count)}/{self.period}"


def parse_rate(text: str) -> Rate:
    """Read `60/min` or `1000/h`. Raises ValueError."""
    count, slash, period = text.strip().partition("/")
    known = _PERIOD_NAMES.get(period.strip().lower())
    if not slash or known is None:
        raise ValueError("use the form 60/min; the periods are s, min, h and day")
    return Rate(parse_count(count), known)


def parse_tokens(text: str) -> Rate:
    """Read `1M/day`, `20k/min` or `30M/month`; without a period, by day. Raises ValueError."""
    count, slash, period = text.strip().partition("/")
    name = period.strip().lower() if slash else "day"
    known = name if name == MONTH else _PERIOD_NAMES.get(name)
    if known not in ("min", "day", MONTH):
        raise ValueError("use the form 1M/day; the periods are minute, day and month")
    return Rate(parse_count(count), known)


def parse_count(text: str) -> int:
    """Read a positive number such as `500`, `20k` or `1.5M`. Raises ValueError."""
    match = _COUNT.fullmatch(text.strip())
    exact = float(match[1]) * _MULTIPLES[match[2].lower()] if match else 0
    count = round(exact) if exact < 2**53 else 0
    if count < 1:
        raise ValueError(f"'{text.strip()}' is not a positive number; use the form 500 or 20k")
    return count


def parse_age(text: str) -> float:
    """Read a duration such as `12h`, `30d` or `2w`; return seconds. Raises ValueError."""
    match = _AGE.fullmatch(text.strip())
    unit_s = _AGES_S.get(match[2].lower()) if match else None
    if match is None or unit_s is None or not 0 < float(match[1]) * unit_s < _MAX_AGE_S:
        raise ValueError(f"'{text.strip()}' is not a duration; use the form 12h, 30d or 2w")
    return float(match[1]) * unit_s


def format_count(count: int) -> str:
    """Write a number as users write it: `1M`, `20k`, `1500`."""
    for letter, size in (("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)):
        if count >= size and count % size == 0:
            return f"{count // size}{letter}"
    return str(count)


class Scope(StrEnum):
    """Permission of a key; `ADMIN` includes all others except `ENGINE`.

    `NODE` is for the head of a cluster: it may use, list, pull and delete models, and watch the
    server. `ENGINE` opens the engines' own routes and fields.
    """

    INFER = "infer"
    READ = "read"
    NODE = "node"
    ADMIN = "admin"
    ENGINE = "engine"


class Replaced(Struct, frozen=True, kw_only=True):
    """The secret that a key had until it was rotated, which goes on working for a while."""

    digest: str
    shown: str
    since_s: float
    until_s: float

    def works(self, now_s: float) -> bool:
        """Return whether it is accepted. A clock that is set back far does not prolong it."""
        return self.since_s - SKEW_S <= now_s < self.until_s


class ApiKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key; of a named one the secret itself is not kept.

    `digest` is that of `digest_secret`, `shown` are the characters by which its owner recognizes
    it. `models` are patterns, () allows all. `tokens` are those of a `tokens_period`, as in `Rate`.
    `model_rate` and `model_tokens` limit each of some models, by their names or patterns.
    `priority` is the number of turns that its waiting requests get for each turn of a key with
    priority 1. Times are Unix seconds; None: never. `owner` identifies what its requests leave
    behind, such as stored responses; it survives a rotation, but not the end of the key. `replaced`
    is the secret before this one; the same key by that secret has its `digest`. A proxy's key
    `trusts_user`: each request says who is its `user`, who owns what it leaves behind.
    """

    name: str
    digest: str
    shown: str = ""
    scopes: tuple[Scope, ...] = (Scope.INFER,)
    models: tuple[str, ...] = ()
    rate: Rate | None = None
    tokens: int | None = None
    tokens_period: Literal["min", "day", "month"] = "day"
    model_rate: tuple[tuple[str, Rate], ...] = ()
    model_tokens: tuple[tuple[str, Rate], ...] = ()
    concurrent: int | None = None
    budget: MoneyLimit | None = None
    group: str | None = None
    priority: int = 1
    created_s: float = 0.0
    expires_s: float | None = None
    revoked_s: float | None = None
    owner: str = ""
    replaced: Replaced | None = None
    trusts_user: bool = False
    user: str = ""

    @property
    def identity(self) -> str:
        """Identity for the limits: the name may have been that of another key before."""
        return self.owner or self.name

    @property
    def title(self) -> str:
        """The key in a sentence."""
        return f"key '{self.name}'"

    @property
    def token_limit(self) -> Rate | None:
        """The limit of tokens with its period."""
        return None if self.tokens is None else Rate(self.tokens, self.tokens_period)

    def allows(self, scope: Scope) -> bool:
        """Return whether the key may do what needs `scope`."""
        return scope in self.scopes or (Scope.ADMIN in self.scopes and scope is not Scope.ENGINE)

    def may_use(self, *names: str) -> bool:
        """Return whether the key may use a model that has one of `names`."""
        return not self.models or any(matches(one, name) for name in names for one in self.models)

    def find_fault(self, now_s: float) -> str | None:
        """Return why the key is not accepted any more; None if it is."""
        if self.revoked_s is not None:
            return f"key '{self.name}' has been revoked"
        if self.expires_s is not None and now_s >= self.expires_s:
            return f"key '{self.name}' has expired"
        if (old := self.replaced) and old.digest == self.digest and not old.works(now_s):
            return f"key '{self.name}' has been rotated"
        return None


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern is one of a model's name."""
    forms = {name.lower(), name.lower().removesuffix(LATEST)}
    return any(fnmatchcase(form, pattern.lower()) for form in forms)


def make_node_key(secret: str) -> ApiKey:
    """Return the key that the head of a cluster shows to its nodes."""
    return ApiKey(name="node", digest=digest_secret(secret), scopes=(Scope.NODE,), owner="node")


def name_client(key: ApiKey | None) -> str:
    """Return the head's description, for a node, of the key that a client has shown."""
    return f"{key.priority} {key.name}" if key is not None else ""


def hash_seed(seed: bytes) -> str:
    """Return 24 hexadecimal digits for the ids of a request with this seed."""
    return hashlib.blake2b(seed, digest_size=12).hexdigest()


def act_for(key: ApiKey, client: str) -> ApiKey:
    """Return a node key as the client that `name_client` names: turns and what is kept are its own.

    Other keys are returned as they are, whatever their requests say.
    """
    priority, _, name = client.partition(" ")
    if key.scopes != (Scope.NODE,) or not (
        priority.isdecimal() and re.fullmatch(NAME_PATTERN, name)
    ):
        return key
    turns = min(max(1, int(priority[:6])), MAX_PRIORITY)
    return replace(key, name=name, owner=f"{key.owner} {name}", priority=turns)


def act_for_user(key: ApiKey, read_header: Callable[[bytes], str]) -> ApiKey:
    """Return a proxy's key with the user whom its request names; other keys as they are."""
    headers = map(read_header, USER_HEADERS) if key.trusts_user else ()
    text = next(filter(None, map(str.strip, headers)), "")
    user = text.encode("latin-1").decode(errors="replace")
    return replace(key, user=user) if user.isprintable() and len(user) <= MAX_USER else key


def index_keys(keys: Iterable[ApiKey]) -> dict[str, ApiKey]:
    """Return keys by the digests of all their secrets."""
    found: dict[str, ApiKey] = {}
    for key in keys:
        if (old := key.replaced) is not None:
            found[old.digest] = replace(key, digest=old.digest, shown=old.shown)
        found[key.digest] = key
    return found


def make_plain_keys(plain: tuple[str, ...]) -> Mapping[str, ApiKey]:
    """Return the keys of `--api-key`, which may do everything, by digest."""
    made = (
        ApiKey(
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
    """Return so much of a secret that its owner recognizes it."""
    return "…" + (secret[-SHOWN_CHARACTERS:] if len(secret) >= LEAST_SECRET_CHARACTERS else "")
