"""The fields of keys as people write and read them: for `vllama keys`, and for `/api/keys`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from vllama.accounts.keys import key as keys
from vllama.accounts.keys import store
from vllama.accounts.keys.key import Key
from vllama.base.errors import ConfigError
from vllama.base.meaning import says
from vllama.base.units import rfc3339_local

NONE = "none"
_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "scope": ("scopes", store.read_scopes),
    "scopes": ("scopes", store.read_scopes),
    "models": ("models", store.read_patterns),
    "rate": ("rate", keys.parse_rate),
    "tokens": ("tokens", keys.parse_tokens),
    "concurrent": ("concurrent", keys.parse_count),
    "priority": ("priority", store.read_priority),
    "expires": ("expires_s", lambda text: time.time() + keys.parse_age(text)),
    "overlap": ("overlap_s", keys.parse_age),
}


class KeyRow(Struct, frozen=True, kw_only=True):
    """A key, without what identifies its secret."""

    name: str
    shown: Annotated[str, says("the last characters of its secret")]
    scopes: Annotated[list[str], says("what it may do: `infer`, `read`, `admin`")]
    models: Annotated[list[str], says("patterns of the models that it may use; empty: all")]
    rate: Annotated[str | None, says("requests in a period, such as `60/min`; null: no limit")]
    tokens: Annotated[str | None, says("tokens in a period, such as `1000/day`; null: no limit")]
    tokens_per_day: Annotated[int | None, says("the tokens, if their period is a day")]
    concurrent: Annotated[int | None, says("requests at once; null: no limit")]
    priority: Annotated[int, says("its turns in a queue for each turn of a usual key")]
    created_at: Annotated[str | None, says("when it was made")]
    expires_at: Annotated[str | None, says("when it expires; null: never")]
    revoked_at: Annotated[str | None, says("when it was revoked; null: it works")]
    replaced: Annotated[
        dict[str, str] | None, says("its secret before the last rotation: `shown`, `until`")
    ]
    secret: Annotated[str | UnsetType, says("a new secret, which is shown this once")] = UNSET


def read_fields(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the fields of a key that texts set; `none`, or null, removes a limit.

    `prefix` stands before a name in errors, as it does for users. Raises ConfigError.
    """
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _READERS:
            raise ConfigError(f"cannot use {prefix}{name}: a key has no such field")
        field, read = _READERS[name]
        texts = value if isinstance(value, list) else [NONE if value is None else str(value)]
        if texts == [NONE] and field not in ("scopes", "priority", "overlap_s"):
            fields[field] = () if name == "models" else None
            continue
        try:
            fields[field] = read(texts if field in ("scopes", "models") else ",".join(texts))
        except ValueError as error:
            raise ConfigError(f"cannot use {prefix}{name}: {error}") from None
    if limit := fields.get("tokens"):
        fields |= {"tokens": limit.count, "tokens_period": limit.period}
    return fields


def describe_key(key: Key, secret: str = "") -> KeyRow:
    """Return a key as JSON shows it; only the answer that makes a secret has that."""

    def show(time_s: float | None) -> str | None:
        return None if time_s is None else rfc3339_local(time_s)

    old = key.replaced
    return KeyRow(
        name=key.name,
        shown=key.shown,
        scopes=[str(scope) for scope in key.scopes],
        models=list(key.models),
        rate=str(key.rate) if key.rate else None,
        tokens=f"{key.tokens}/{key.tokens_period}" if key.tokens else None,
        tokens_per_day=key.tokens if key.tokens_period == "day" else None,
        concurrent=key.concurrent,
        priority=key.priority,
        created_at=show(key.created_s),
        expires_at=show(key.expires_s),
        revoked_at=show(key.revoked_s),
        replaced={"shown": old.shown, "until": rfc3339_local(old.until_s)} if old else None,
        secret=secret or UNSET,
    )
