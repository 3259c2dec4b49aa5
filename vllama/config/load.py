"""How the settings are put together: flags over environment over config file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from vllama.config import address
from vllama.config.address import Address
from vllama.config.folders import default_config_dir, default_data_dir, default_hf_home
from vllama.config.key_file import open_to_others, read_keys
from vllama.config.settings import (
    UNSET,
    Config,
    default,
)
from vllama.config.table import ENV_PREFIX, SETTINGS, Setting
from vllama.errors import ConfigError

FILE_NAME = "config.toml"
FILE_VARIABLE = "VLLAMA_CONFIG"


def default_file() -> Path:
    """Return where the config file lies if none is named."""
    return default_config_dir() / FILE_NAME


def load(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None
) -> Config:
    """Put the settings together; `flags` by field name, None or `UNSET` where not given.

    1. Read the file: the one given, else `VLLAMA_CONFIG`, else the default one if it is there.
    2. For each row of the table take the highest source that has it.
    3. Fill in what follows from other settings.

    Raises ConfigError that names the key, the value and where it came from.
    """
    notes: list[str] = []
    path, entries = _read_file(file, environ)
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        given = [g for g in _given(setting, flags, environ, entries, path) if g.is_given]
        if setting.field == "host":
            _take_addresses(setting, given, values, notes)
        elif setting.field == "port":
            _take_port(setting, given, values)
        else:
            _take(setting, given, values, notes)
    _fill_in(values, environ, notes)
    notes.extend(_unknown_variables(environ))
    return Config(**values, config_file=path, notes=tuple(notes))


class _Given(Struct, frozen=True, kw_only=True):
    """A value as it was written, and where. `lenient`: by Ollama's manners. Low `rank` wins."""

    value: object
    origin: str
    rank: int
    lenient: bool = False

    @property
    def is_given(self) -> bool:
        return self.value is not None and self.value is not UNSET and self.value != ""


def _given(
    setting: Setting,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    entries: Mapping[str, object],
    path: Path | None,
) -> Iterator[_Given]:
    """Yield what each source says, highest first."""
    origin = setting.flag or f"the argument {setting.field}"
    yield _Given(value=flags.get(setting.field), origin=origin, rank=0)
    yield _Given(value=_unquoted(environ, setting.env), origin=setting.env, rank=1)
    if setting.foreign:
        value = _trimmed(environ, setting.foreign)
        yield _Given(value=value, origin=setting.foreign, rank=2, lenient=True)
    yield _Given(value=entries.get(setting.key), origin=str(path), rank=3)


def _trimmed(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip().strip("\"'")


def _unquoted(environ: Mapping[str, str], name: str) -> str:
    """Take off a pair of quotes only: inside `--a 'b c'` they mean something."""
    text = environ.get(name, "").strip()
    paired = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and text.count(text[0]) == 2
    return text[1:-1] if paired else text


def _take(
    setting: Setting, given: Iterable[_Given], values: dict[str, Any], notes: list[str]
) -> None:
    for source in given:
        try:
            values[setting.field] = _parse(setting, source)
        except ConfigError as error:
            if not source.lenient:
                raise
            if isinstance(default(setting.field), bool) or setting.field == "flash_attention":
                values[setting.field] = True
            else:
                notes.append(f"{error.message}; it is left out")
                continue
        return


def _take_addresses(
    setting: Setting, given: Iterable[_Given], values: dict[str, Any], notes: list[str]
) -> None:
    """Take scheme, host and port each from the highest source that names it."""
    for source in given:
        if source.lenient:
            parts = _lenient_address(str(source.value), source.origin, notes)
        else:
            parts = _parse(setting, source)
        if parts.host is not None:
            values.setdefault("host", parts.host)
        if parts.scheme is not None:
            values.setdefault("scheme", parts.scheme)
        if parts.port is not None:
            values.setdefault("port", parts.port)
            values.setdefault("port rank", source.rank)


def _lenient_address(text: str, origin: str, notes: list[str]) -> Address:
    try:
        parts = address.parse_address(text)
    except ValueError as error:
        notes.append(f'cannot use host "{text}" from {origin}: {error}; it is left out')
        return Address()
    if parts.bad_port is not None:
        fallback = parts.port or default("port")
        notes.append(f'no such port: "{parts.bad_port}" in {origin}; {fallback} is used instead')
    return parts


def _take_port(setting: Setting, given: Iterable[_Given], values: dict[str, Any]) -> None:
    """Take a port setting unless an address of a higher source names one."""
    rank = values.pop("port rank", 99)
    for source in given:
        number = _parse(setting, source)
        if source.rank <= rank:
            values["port"] = number
        return


def _parse(setting: Setting, source: _Given) -> Any:
    value = source.value
    shown = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else as_text(value)
    try:
        if isinstance(value, (list, tuple)):
            if not setting.many:
                raise ValueError("a list cannot be given here")
            return setting.parse([as_text(item) for item in value])
        if isinstance(value, dict):
            if not setting.table:
                raise ValueError("a table cannot be given here")
            return setting.parse([f"{name}={as_text(item)}" for name, item in value.items()])
        return setting.parse(as_text(value))
    except ValueError as error:
        if setting.secret:
            shown = "…"
        raise ConfigError(
            f'cannot use {setting.key} "{shown}" from {source.origin}: {error}',
            hint=f"give {setting.help}, such as {setting.example}",
        ) from None


def as_text(value: object) -> str:
    """Write a value as a user would."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_file(
    file: Path | None, environ: Mapping[str, str]
) -> tuple[Path | None, Mapping[str, object]]:
    named = _trimmed(environ, FILE_VARIABLE)
    path = file or (Path(named).expanduser() if named else default_file())
    wanted = file is not None or bool(named)
    try:
        content = path.read_bytes()
    except OSError as error:
        if not wanted:
            return None, {}
        reason = error.strerror or "it cannot be read"
        raise ConfigError(f'cannot read the config file "{path}": {reason}') from None
    import tomllib

    try:
        entries = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f'cannot read the config file "{path}": {error}',
            hint="write lines such as: context_length = 8192",
        ) from None
    known = [setting.key for setting in SETTINGS]
    for key in entries:
        if key not in known:
            nearest = _nearest(key, known)
            hint = f"did you mean {nearest}?" if nearest else f"use one of {', '.join(known)}"
            raise ConfigError(f'cannot use "{key}" in {path}: no such setting', hint=hint)
    return path, entries


def _fill_in(values: dict[str, Any], environ: Mapping[str, str], notes: list[str]) -> None:
    """Derive the folders that hang together, and the hub's token, as huggingface_hub does."""
    home = _trimmed(environ, "HF_HOME")
    cache = _trimmed(environ, "XDG_CACHE_HOME")
    hf_home = Path(home).expanduser() if home else None
    if hf_home is None:
        hf_home = Path(cache).expanduser() / "huggingface" if cache else default_hf_home()
    older = _trimmed(environ, "HUGGINGFACE_HUB_CACHE")
    values.setdefault("hf_cache_dir", Path(older).expanduser() if older else hf_home / "hub")
    if "hf_token" not in values and (token := _trimmed(environ, "HUGGING_FACE_HUB_TOKEN")):
        values["hf_token"] = token
    if "hf_token" not in values:
        named = _trimmed(environ, "HF_TOKEN_PATH")
        path = Path(named).expanduser() if named else hf_home / "token"
        try:
            values["hf_token"] = path.read_text().strip() or None
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError):
            notes.append(f'cannot read the hub\'s token in "{path}"; it is left out')
    _take_secrets(values, notes)
    data = values.setdefault("data_dir", default_data_dir())
    values.setdefault("log_dir", data / "logs")
    values.setdefault("run_dir", data / "run")


def _take_secrets(values: dict[str, Any], notes: list[str]) -> None:
    """Read the file of keys; warn of secrets that others can read."""
    certificate, key, keys = (values.get(n) for n in ("tls_cert", "tls_key", "api_key_file"))
    if certificate:
        values.setdefault("scheme", "https")
    elif key:
        raise ConfigError(
            f'cannot use tls_key "{key}" alone', hint="name its certificate too: --tls-cert FILE"
        )
    if keys:
        values["api_key"] = (*values.get("api_key", ()), *read_keys(keys))
    for secret in (keys, (key or certificate) if certificate else None):
        if secret and (warning := open_to_others(secret)):
            notes.append(warning)


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    known = [FILE_VARIABLE, *(setting.env for setting in SETTINGS)]
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and name not in known:
            nearest = _nearest(name, known)
            yield f"{name} is no setting" + (f"; did you mean {nearest}?" if nearest else "")


def _nearest(name: str, known: Sequence[str]) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1)), None)
