"""Changes of the named keys, as `vllama keys` makes them. They modify the keys by name."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from vllama.accounts.keys.amounts import parse_count
from vllama.accounts.keys.key import (
    MAX_PRIORITY,
    NAME_PATTERN,
    Key,
    Replaced,
    Scope,
    digest_secret,
    mask_secret,
)
from vllama.base.errors import ConfigError


def add_key(
    keys: dict[str, Key], name: str, secret: str, fields: Mapping[str, Any], now_s: float
) -> Key:
    """Add a key. Raises ConfigError if its name is taken, even by one that has been revoked.

    Usage is shown by the name, and a revoked key still stands in the list.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(
            f"cannot add the key '{name}': no such name is possible",
            hint="use up to 64 letters, digits and . _ - @, and begin with a letter or digit",
        )
    known = keys.get(name)
    if known is not None and known.revoked_s is not None:
        raise ConfigError(
            f"cannot add the key '{name}': one of that name has been revoked",
            hint=f"choose another name; or remove the revoked key first: vllama keys rm {name}",
        )
    if known is not None:
        raise ConfigError(
            f"cannot add the key '{name}': there is one",
            hint=f"give it a new secret: vllama keys rotate {name}; or other limits: "
            f"vllama keys change {name}",
        )
    keys[name] = Key(
        name=name,
        digest=digest_secret(secret),
        shown=mask_secret(secret),
        created_s=now_s,
        owner=secrets.token_hex(16),
        **fields,
    )
    return keys[name]


def change_key(keys: dict[str, Key], name: str, fields: Mapping[str, Any]) -> Key:
    """Change what a key may do. Raises ConfigError."""
    if not fields:
        raise ConfigError(
            f"cannot change the key '{name}': nothing is to be changed",
            hint=f"name a limit: vllama keys change {name} --rate 60/min",
        )
    keys[name] = replace(find_key(keys, name), **fields)
    return keys[name]


def rotate_key(
    keys: dict[str, Key], name: str, secret: str, *, overlap_s: float = 0.0, now_s: float = 0.0
) -> Key:
    """Give a key another secret. Raises ConfigError.

    The old secret goes on working for `overlap_s`; one before it ends now, so two work at most.
    """
    key, until_s = find_key(keys, name), now_s + overlap_s
    old = Replaced(digest=key.digest, shown=key.shown, since_s=now_s, until_s=until_s)
    new = replace(key, digest=digest_secret(secret), shown=mask_secret(secret))
    keys[name] = replace(new, replaced=old if overlap_s else None)
    return keys[name]


def revoke_key(keys: dict[str, Key], name: str, now_s: float) -> Key:
    """Revoke a key for good; it stays in the list. Raises ConfigError."""
    keys[name] = replace(find_key(keys, name), revoked_s=now_s)
    return keys[name]


def remove_key(keys: dict[str, Key], name: str) -> Key:
    """Remove a revoked key from the list; its usage stays. Raises ConfigError."""
    key = keys.get(name)
    if key is None:
        raise ConfigError(f"cannot remove the key '{name}': there is none", hint="vllama keys list")
    if key.revoked_s is None:
        raise ConfigError(
            f"cannot remove the key '{name}': it has not been revoked",
            hint=f"vllama keys revoke {name}",
        )
    return keys.pop(name)


def find_key(keys: Mapping[str, Key], name: str) -> Key:
    """Return a key that has not been revoked. Raises ConfigError."""
    key = keys.get(name)
    if key is None or key.revoked_s is not None:
        reason = "there is none" if key is None else "it has been revoked"
        raise ConfigError(f"cannot find the key '{name}': {reason}", hint="vllama keys list")
    return key


def read_scopes(values: Sequence[str]) -> tuple[Scope, ...]:
    """Read scopes with commas between them. Raises ValueError."""
    names = {name.strip().lower() for value in values for name in value.split(",")} - {""}
    known = {str(scope) for scope in Scope}
    if not names or names - known:
        wrong = ", ".join(sorted(names - known)) or "nothing"
        raise ValueError(f"'{wrong}' is no scope; choose from {', '.join(Scope)}")
    return tuple(scope for scope in Scope if scope in names)


def read_patterns(values: Sequence[str]) -> tuple[str, ...]:
    """Read patterns of models with commas between them. Raises ValueError."""
    patterns = [one.strip() for value in values for one in value.split(",") if one.strip()]
    if not patterns:
        raise ValueError("there is no pattern; write it like 'qwen3*'")
    return tuple(dict.fromkeys(patterns))


def read_priority(text: str) -> int:
    """Read a priority. Raises ValueError."""
    priority = parse_count(text)
    if priority > MAX_PRIORITY:
        raise ValueError(f"the highest priority is {MAX_PRIORITY}")
    return priority
