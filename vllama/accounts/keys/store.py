"""The file of the named keys: written by `vllama keys`, read by the server whenever it changes.

The second half has the fields of keys as people write and read them: for `vllama keys`, and for
`/api/keys`.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from vllama.accounts.keys.group import MODEL_RATE, MODEL_TOKENS
from vllama.accounts.keys.key import (
    MAX_PRIORITY,
    NAME_PATTERN,
    ApiKey,
    Replaced,
    Scope,
    digest_secret,
    mask_secret,
    parse_age,
    parse_count,
    parse_rate,
    parse_tokens,
)
from vllama.accounts.usage.money import parse_budget
from vllama.base import audit, kinds, private
from vllama.base.errors import ConfigError
from vllama.base.meaning import says
from vllama.base.units import rfc3339_local

T = TypeVar("T")

LOCK_LIMIT_S = 10.0


class UnknownKey(ConfigError):
    """There is no key of this name that works."""

    status = 404


class KeyFile(msgspec.Struct, frozen=True):
    """The content of the file. `open`: requests need no key, as before there was any."""

    keys: tuple[ApiKey, ...] = ()
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
            hint="run the command as the server's user",
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"cannot read the keys in '{path}': {error}",
            hint="restore the file, or remove it and add the keys again",
        ) from None


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys of a file; none if it does not exist. Raises ConfigError."""
    return read_file(path).keys


def wants_keys(path: Path) -> bool:
    """Tell whether a server that starts with this file needs keys, or does not start."""
    try:
        return not read_file(path).open
    except ConfigError:
        return True


def change_keys(
    path: Path, change: Callable[[dict[str, ApiKey]], T], act: str = "", *, opens: bool = False
) -> T:
    """Apply `change`, which is the `act` of the audit log, to the keys by name, and write them.

    Return its result. With `opens`, requests need no key until a key is added. Other commands wait
    meanwhile, and no reader sees half of a change. Raises ConfigError, and what `change` raises.
    """
    try:
        with private.lock_file(path.with_suffix(".lock"), LOCK_LIMIT_S):
            before = read_file(path)
            keys = {key.name: key for key in before.keys}
            changed = change(keys)
            is_open = opens or (before.open and keys.keys() <= {key.name for key in before.keys})
            content = msgspec.json.encode(KeyFile(tuple(keys.values()), open=is_open))
            private.replace(path, msgspec.json.format(content, indent=2) + b"\n")
            old = {key.name: key for key in before.keys}
            for name in [name for name in {**old, **keys} if old.get(name) != keys.get(name)]:
                told = _list_told(old.get(name)), _list_told(keys.get(name))
                audit.record(path.parent, f"keys {act if name in keys else 'remove'}", name, *told)
            if opens:
                audit.record(path.parent, "keys open", "")
        return changed
    except OSError as error:
        raise ConfigError(
            f"cannot write the keys in '{path}': {error.strerror or error}",
            hint="run the command as the server's user"
            if isinstance(error, PermissionError)
            else "use a folder with free space: VLLAMA_DATA_DIR=FOLDER",
        ) from None


def _list_told(key: ApiKey | None) -> dict[str, Any]:
    """Return a key for the audit log, without any part of a secret."""
    row = msgspec.to_builtins(describe_key(key)) if key is not None else {}
    return {name: value for name, value in row.items() if name not in ("shown", "replaced")}


def add_key(
    keys: dict[str, ApiKey], name: str, secret: str, fields: Mapping[str, Any], now_s: float
) -> ApiKey:
    """Add a key. Raises ConfigError if its name is taken, even by one that has been revoked.

    Usage is shown by the name, and a revoked key still stands in the list.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(
            f"cannot add the key '{name}': invalid name",
            hint="use up to 64 letters, digits and . _ - @, starting with a letter or digit",
        )
    known = keys.get(name)
    if known is not None and known.revoked_s is not None:
        raise ConfigError(
            f"cannot add the key '{name}': a revoked key has this name",
            hint=f"choose another name, or remove the revoked key first: vllama keys remove {name}",
        )
    if known is not None:
        raise ConfigError(
            f"cannot add the key '{name}': it already exists",
            hint=f"change its secret: vllama keys rotate {name}; or its limits: vllama keys change "
            f"{name}",
        )
    keys[name] = ApiKey(
        name=name,
        digest=digest_secret(secret),
        shown=mask_secret(secret),
        created_s=now_s,
        owner=secrets.token_hex(16),
        **fields,
    )
    return keys[name]


def change_key(keys: dict[str, ApiKey], name: str, fields: Mapping[str, Any]) -> ApiKey:
    """Change what a key may do. Raises ConfigError."""
    if not fields:
        raise ConfigError(
            f"cannot change the key '{name}': no change specified",
            hint=f"specify a limit: vllama keys change {name} --rate 60/min",
        )
    keys[name] = replace(find_key(keys, name), **fields)
    return keys[name]


def rotate_key(
    keys: dict[str, ApiKey], name: str, secret: str, *, overlap_s: float = 0.0, now_s: float = 0.0
) -> ApiKey:
    """Give a key another secret. Raises ConfigError.

    The old secret goes on working for `overlap_s`; one before it ends now, so two work at most.
    """
    key, until_s = find_key(keys, name), now_s + overlap_s
    old = Replaced(digest=key.digest, shown=key.shown, since_s=now_s, until_s=until_s)
    new = replace(key, digest=digest_secret(secret), shown=mask_secret(secret))
    keys[name] = replace(new, replaced=old if overlap_s else None)
    return keys[name]


def revoke_key(keys: dict[str, ApiKey], name: str, now_s: float) -> ApiKey:
    """Revoke a key for good; it stays in the list. Raises ConfigError."""
    keys[name] = replace(find_key(keys, name), revoked_s=now_s)
    return keys[name]


def remove_key(keys: dict[str, ApiKey], name: str) -> ApiKey:
    """Remove a revoked key from the list; its usage stays. Raises ConfigError."""
    key = keys.get(name)
    if key is None:
        raise UnknownKey(f"cannot remove the key '{name}': no such key", hint="vllama keys list")
    if key.revoked_s is None:
        raise ConfigError(
            f"cannot remove the key '{name}': it is not revoked",
            hint=f"vllama keys revoke {name}",
        )
    return keys.pop(name)


def find_key(keys: Mapping[str, ApiKey], name: str) -> ApiKey:
    """Return a key that has not been revoked. Raises ConfigError."""
    key = keys.get(name)
    if key is None or key.revoked_s is not None:
        reason = "no such key" if key is None else "it is revoked"
        raise UnknownKey(f"cannot use the key '{name}': {reason}", hint="vllama keys list")
    return key


# -- fields --------------------------------------------------------------------------------------


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without its secret."""

    name: str
    shown: Annotated[str, says("last characters of the secret")]
    scopes: Annotated[list[str], says("scopes: `infer`, `read`, `admin`, `engine`")]
    models: Annotated[list[str], says("patterns of allowed model names; empty: all")]
    rate: Annotated[str | None, says("request limit, such as `60/min`; null: no limit")]
    tokens: Annotated[str | None, says("token limit, such as `1000/day`; null: no limit")]
    tokens_per_day: Annotated[int | None, says("token limit per day, if the period is a day")]
    model_rate: Annotated[list[str], says("request limits by model: `MODEL=N/PERIOD`")]
    model_tokens: Annotated[list[str], says("token limits by model: `MODEL=N/PERIOD`")]
    concurrent: Annotated[int | None, says("maximum parallel requests; null: no limit")]
    budget: Annotated[str | None, says("spending limit, such as `50/month`; null: no limit")]
    group: Annotated[str | None, says("group with shared limits")]
    trusts_user: Annotated[bool, says("true if requests name their user in a header")]
    priority: Annotated[int, says("queue weight; 1 by default")]
    created_at: Annotated[str | None, says("creation time")]
    expires_at: Annotated[str | None, says("expiration time; null: never")]
    revoked_at: Annotated[str | None, says("time of revocation; null if not revoked")]
    replaced: Annotated[
        dict[str, str] | None, says("secret before the last rotation: `shown`, `until`")
    ]
    secret: Annotated[str | UnsetType, says("the new secret, shown only once")] = UNSET


def read_scopes(values: Sequence[str]) -> tuple[Scope, ...]:
    """Read scopes with commas between them. Raises ValueError."""
    names = {name.strip().lower() for value in values for name in value.split(",")} - {""}
    known = {str(scope) for scope in Scope}
    if not names or names - known:
        wrong = ", ".join(sorted(names - known)) or "nothing"
        raise ValueError(f"'{wrong}' is not a scope; choose from {', '.join(Scope)}")
    return tuple(scope for scope in Scope if scope in names)


def read_patterns(values: Sequence[str]) -> tuple[str, ...]:
    """Read patterns of models with commas between them. Raises ValueError."""
    patterns = [one.strip() for value in values for one in value.split(",") if one.strip()]
    if not patterns:
        raise ValueError("empty pattern; use the form 'qwen3*'")
    return tuple(dict.fromkeys(patterns))


def read_priority(text: str) -> int:
    """Read a priority. Raises ValueError."""
    priority = parse_count(text)
    if priority > MAX_PRIORITY:
        raise ValueError(f"the maximum priority is {MAX_PRIORITY}")
    return priority


NONE = "none"
_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "scope": ("scopes", read_scopes),
    "scopes": ("scopes", read_scopes),
    "models": ("models", read_patterns),
    "rate": ("rate", parse_rate),
    "tokens": ("tokens", parse_tokens),
    "model_rate": ("model_rate", MODEL_RATE.parse),
    "model_tokens": ("model_tokens", MODEL_TOKENS.parse),
    "trusts_user": ("trusts_user", kinds.read_switch),
    "concurrent": ("concurrent", parse_count),
    "budget": ("budget", parse_budget),
    "group": ("group", str.strip),
    "priority": ("priority", read_priority),
    "expires": ("expires_s", lambda text: time.time() + parse_age(text)),
    "overlap": ("overlap_s", parse_age),
}


def read_fields(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the fields of a key that texts set; `none`, or null, removes a limit.

    `prefix` stands before a name in errors, as it does for users. Raises ConfigError.
    """
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _READERS:
            raise ConfigError(f"cannot use {prefix}{name}: unknown field")
        field, read = _READERS[name]
        texts = value if isinstance(value, list) else [NONE if value is None else str(value)]
        if texts == [NONE] and field not in ("scopes", "priority", "overlap_s", "trusts_user"):
            fields[field] = () if name.startswith("model") else None
            continue
        try:
            fields[field] = read(texts if field in ("scopes", "models") else ",".join(texts))
        except ValueError as error:
            shown = f"{prefix}{name.replace('_', '-')}" if prefix else name
            raise ConfigError(f"cannot use {shown}: {error}") from None
    if limit := fields.get("tokens"):
        fields |= {"tokens": limit.count, "tokens_period": limit.period}
    return fields


def describe_key(key: ApiKey, secret: str = "") -> KeyRow:
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
        model_rate=["=".join(map(str, one)) for one in key.model_rate],
        model_tokens=["=".join(map(str, one)) for one in key.model_tokens],
        concurrent=key.concurrent,
        budget=str(key.budget) if key.budget else None,
        group=key.group,
        trusts_user=key.trusts_user,
        priority=key.priority,
        created_at=show(key.created_s),
        expires_at=show(key.expires_s),
        revoked_at=show(key.revoked_s),
        replaced={"shown": old.shown, "until": rfc3339_local(old.until_s)} if old else None,
        secret=secret or UNSET,
    )
