"""Puts the settings together: flags over environment over config file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllama.base.errors import ConfigError
from vllama.base.folders import default_config_dir, default_data_dir, default_hf_home
from vllama.base.kinds import write_value
from vllama.base.setting import ENV_PREFIX, Setting, TableError
from vllama.base.spelling import find_similar
from vllama.base.toml_lines import find_line, write_keys
from vllama.config.address import Address, parse_address
from vllama.config.removed import (
    ELSEWHERE,
    find_present,
    is_removed,
    list_removed,
    renew,
    suggest_setting,
)
from vllama.config.secrets import explain_unsendable, open_to_others, read_keys
from vllama.config.settings import BY_FIELD, SETTINGS, Config
from vllama.models.settings import UpstreamSettings

FILE_NAME = "config.toml"
FILE_VARIABLE = "VLLAMA_CONFIG"


def default_file() -> Path:
    """Return where the config file lies if none is named."""
    return default_config_dir() / FILE_NAME


def find_config_file(environ: Mapping[str, str]) -> Path:
    """Return the config file that `VLLAMA_CONFIG` names, else the default one."""
    named = _trim(environ, FILE_VARIABLE)
    return Path(named).expanduser() if named else default_file()


def load(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None = None,
    *,
    serves: bool = False,
) -> Config:
    """Put the settings together; `flags` by field name, None where one was not given.

    Only a server needs the keys of its upstreams (`serves`); for others, a missing one is a note.

    1. Read the file: the one given, else `VLLAMA_CONFIG`, else the default one if it exists.
    2. For each setting take the value of the highest source that has it.
    3. Fill in what follows from other settings.

    Raises ConfigError that names the key, the value and where it came from.
    """
    environ = {name: text for name, text in environ.items() if not _is_other(name, text)}
    read = _read_file(file, environ)
    loader = _Loader(flags, environ, read)
    known = {name for one in SETTINGS for name in (one.key, one.env, one.foreign or FILE_VARIABLE)}
    loader.notes.extend(list_removed(read.entries, read.place, environ))
    for setting in SETTINGS:  # the address comes before the port, which wins over the address's
        given = [one for one in loader.list_given(setting) if loader.holds_something(setting, one)]
        if setting.field == "upstreams":
            loader.take_upstreams(setting, given)
        else:
            loader.take(setting, given)
    loader.fill_in()
    loader.read_secrets(serves=serves)
    loader.notes.extend(_unknown_variables(environ, known))
    loader.notes.extend(loader.list_missing())
    return Config(
        **loader.values, config_file=read.path, notes=tuple(loader.notes), sources=loader.sources
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The config file as it was read; all empty if there is none."""

    path: Path | None
    entries: Mapping[str, object]
    text: str

    def place(self, keys: Sequence[str]) -> str:
        """Return where the value at `keys` is."""
        line = find_line(self.text, keys)
        return f"{self.path}, line {line}" if line else str(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A value as it was written, and where. The lowest `rank` wins.

    A value of Ollama's variables is `lenient`: a wrong one is noted and left out, as Ollama does.
    """

    value: object
    origin: str
    rank: int
    lenient: bool = False
    file: _File | None = None

    def place(self, keys: Sequence[str]) -> str:
        """Return where the value at `keys` is."""
        return self.file.place(keys) if self.file else self.origin


def _trim(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip().strip("\"'")


def _unquote(environ: Mapping[str, str], name: str) -> str:
    """Take off one pair of quotes only: inside `--a 'b c'` they mean something."""
    text = environ.get(name, "").strip()
    paired = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and text.count(text[0]) == 2
    return text[1:-1] if paired else text


class _Loader:
    """Collects the values of all settings, where each came from, and warnings for the user."""

    def __init__(
        self, flags: Mapping[str, object], environ: Mapping[str, str], file: _File
    ) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []
        self._flags, self._environ, self._file = flags, environ, file
        self._ranks: dict[str, float] = {}

    def list_given(self, setting: Setting) -> Iterator[_Given]:
        """Yield each source's value of a setting, the highest first."""
        name, file = setting.flag or f"the argument {setting.field}", self._file
        yield _Given(value=self._flags.get(setting.field), origin=name, rank=0)
        yield _Given(value=_unquote(self._environ, setting.env), origin=setting.env, rank=1)
        if foreign := setting.foreign:
            theirs = _trim(self._environ, foreign)
            yield _Given(value=theirs, origin=foreign, rank=2, lenient=True)
        value = file.entries.get(setting.key)
        yield _Given(value=value, origin=str(file.path), rank=3, file=file)

    def take(self, setting: Setting, given: Iterable[_Given]) -> None:
        """Take the value of the highest source that has a usable one.

        Lower ones are read too: a wrong value is an error even where a flag hides it today.
        """
        for source in given:
            hidden = setting.field in self.values
            try:
                value = self._parse(setting, source)
                if setting.field == "api_key" and not value:  # "," has no key, either
                    raise self._make_empty_error(setting, source)
            except ConfigError as error:
                if not source.lenient:
                    raise
                if hidden:
                    continue
                if not (setting.is_switch or setting.field == "flash_attention"):
                    self.notes.append(f"{error.message}; ignored")
                    continue
                value = True  # Ollama's booleans: whatever cannot be read counts as true
            if isinstance(value, Address):
                self._take_address(value, source)
            else:
                self._set(setting.field, value, source.origin, source.rank)

    def holds_something(self, setting: Setting, given: _Given) -> bool:
        """Return whether a source has a value. Raises ConfigError for an empty key of the server.

        With a variable that was meant to be set, the server would be open.
        """
        is_set = given.file or given.origin in self._environ
        if is_set and setting.field in ("api_key", "api_key_file") and given.value in ("", []):
            raise self._make_empty_error(setting, given)
        return given.value not in (None, "")

    @staticmethod
    def _make_empty_error(setting: Setting, given: _Given) -> ConfigError:
        return ConfigError(
            f"cannot use an empty {setting.key} from {given.place((setting.key,))}",
            hint="remove it to run without a key, or set a key",
        )

    def _take_address(self, parts: Address, source: _Given) -> None:
        """Take scheme, host and port each from the highest source that names it."""
        if parts.bad_port is not None:  # of Ollama's variable
            port = parts.port or BY_FIELD["port"].default
            self.notes.append(
                f'invalid port "{parts.bad_port}" in {source.origin}; using port {port} instead'
            )
        for field in ("scheme", "host", "port"):
            if (part := getattr(parts, field)) is not None:
                # the setting `port` of the same source wins
                self._set(field, part, source.origin, source.rank + 0.5)

    def take_upstreams(self, setting: Setting, given: Iterable[_Given]) -> None:
        """Take the URLs of the highest source that has any, and besides all named upstreams."""
        found: dict[str, list[UpstreamSettings]] = {"url": [], "name": []}
        for source in given:
            upstreams = self._parse(setting, source)
            kind = "name" if any(each.name for each in upstreams) else "url"
            if not found[kind]:
                found[kind] = list(upstreams)
                self.sources.setdefault(setting.field, source.origin)
        self.values[setting.field] = (*found["url"], *found["name"])

    def fill_in(self) -> None:
        """Derive the folders that belong together, and the hub's token as huggingface_hub does."""
        environ = self._environ
        home, cache = _trim(environ, "HF_HOME"), _trim(environ, "XDG_CACHE_HOME")
        hf_home = Path(home).expanduser().absolute() if home else None
        if hf_home is None:
            hf_home = (
                Path(cache).expanduser().absolute() / "huggingface" if cache else default_hf_home()
            )
        if older := _trim(environ, "HUGGINGFACE_HUB_CACHE"):
            self._set("hf_cache_dir", Path(older).expanduser().absolute(), "HUGGINGFACE_HUB_CACHE")
        self._set("hf_cache_dir", hf_home / "hub", "HF_HOME" if home else "")
        token, origin = self._hub_token(hf_home)
        self._set("hf_token", token, origin)
        if fault := explain_unsendable(self.values["hf_token"] or ""):
            where = self.sources["hf_token"]
            self.notes.append(
                f"cannot send the hub's token from {where}: {fault}; only public models work"
            )
            self.values["hf_token"] = ""  # None would let huggingface_hub find it again
        self._set("data_dir", default_data_dir())
        self._set("log_dir", self.values["data_dir"] / "logs")
        self._set("run_dir", self.values["data_dir"] / "run")

    def _hub_token(self, hf_home: Path) -> tuple[str | None, str]:
        """Return the token that other tools of the hub have stored, and where it was."""
        if "hf_token" in self.values:
            return None, ""
        if token := _trim(self._environ, "HUGGING_FACE_HUB_TOKEN"):
            return token, "HUGGING_FACE_HUB_TOKEN"
        named = _trim(self._environ, "HF_TOKEN_PATH")
        path = Path(named).expanduser() if named else hf_home / "token"
        try:
            token = path.read_bytes().decode(errors="surrogateescape").strip()
            return token or None, str(path) if token else ""
        except FileNotFoundError:
            pass
        except OSError:
            self.notes.append(f'cannot read the hub\'s token in "{path}"; ignored')
        return None, ""

    def read_secrets(self, *, serves: bool) -> None:
        """Read the file of keys, and warn of secrets that others can read."""
        values = self.values
        certificate, key, keys = (values.get(n) for n in ("tls_cert", "tls_key", "api_key_file"))
        if certificate:
            self._set("scheme", "https")
        elif key:
            raise ConfigError(
                f'cannot use tls_key "{key}" alone',
                hint="set the certificate too: --tls-cert FILE",
            )
        if keys:
            values["api_key"] = (*values.get("api_key", ()), *read_keys(keys))
            self.sources.setdefault("api_key", str(keys))
        upstreams = list[UpstreamSettings]()
        for each in values.get("upstreams", ()):
            try:
                upstreams.append(self._with_key(each))
            except ConfigError as error:
                if serves:
                    raise
                upstreams.append(each)
                self.notes.append(error.message)
        values["upstreams"] = tuple(upstreams)
        key_files = [each.key_file for each in upstreams]
        key_files.append(values.get("node_key_file"))
        for secret in (keys, (key or certificate) if certificate else None, *key_files):
            if secret and (warning := open_to_others(secret)):
                self.notes.append(warning)

    def _with_key(self, upstream: UpstreamSettings) -> UpstreamSettings:
        """Return an upstream with the key that a variable or a file has."""
        where = f"no key for the upstream {upstream.name}"
        if name := upstream.key_env:
            if not (key := _trim(self._environ, name)):
                raise ConfigError(f"{where}: the variable {name} is not set")
            if fault := explain_unsendable(key):
                raise ConfigError(f"{where}: the variable {name} cannot be sent: {fault}")
            return replace(upstream, key=key)
        if file := upstream.key_file:
            try:
                return replace(upstream, key=read_keys(file)[0])
            except ConfigError as error:
                raise ConfigError(f"{where}: {error.message}", hint=error.hint) from None
        return upstream

    def list_missing(self) -> Iterator[str]:
        """Yield which folders that the user named for models are missing: their drive, perhaps."""
        named = [("folders", folder, folder) for folder in self.values.get("folders", ())]
        for field in sorted({"lmstudio_dir", "models_dir", "hf_cache_dir"} & self.sources.keys()):
            folder = self.values[field]  # a pull makes two of them, but not the drive they are on
            drive = folder.parent.parent
            named.append((field, folder, folder if field == "lmstudio_dir" else drive))
        for field, folder, place in named:
            if not os.path.exists(place):  # noqa: PTH110 - Path.exists may raise
                reason = "no such file or folder"
                yield f"cannot look for models in '{folder}' ({field}): {reason}"

    def _set(self, field: str, value: object, origin: str = "", rank: float = math.inf) -> None:
        """Set a value and its source unless a source of the same or a higher rank has set one."""
        if field in self.values and self._ranks[field] <= rank:
            return
        self.values[field], self._ranks[field] = value, rank
        if origin:
            self.sources[field] = origin

    def _parse(self, setting: Setting, source: _Given) -> Any:
        """Return the value of a source. Raises ConfigError."""
        value, kind = source.value, setting.kind
        try:
            if setting.field == "host" and source.lenient:
                return parse_address(str(value))
            if kind.is_nested and isinstance(value, str) and value.startswith("{"):
                import tomllib

                value = tomllib.loads(f"value = {value}")["value"]
            if setting.field in ("models", "upstreams"):
                self.notes.extend(renew(setting.key, value, source.place))
            return kind.read(value)
        except TableError as error:
            where = f"{write_keys(error.path)} from {source.place(error.path)}"
            hint = error.hint or ""
            if hint.startswith("choose one of ") and (other := find_present(error.path[-1])):
                hint = f"did you mean {other}?"
            raise ConfigError(f"cannot use {where}: {error.reason}", hint=hint or None) from None
        except ValueError as error:
            words = value if isinstance(value, list | tuple) else [write_value(value)]
            shown = "…" if setting.secret else " ".join(map(str, words))
            what = setting.key if kind.is_nested else f'{setting.key} "{shown}"'
            raise ConfigError(
                f"cannot use {what} from {source.place((setting.key,))}: {error}",
                hint=f'did you mean [{ELSEWHERE[setting.key]}."NAME"]?'
                if isinstance(value, Mapping) and setting.key in ELSEWHERE
                else f"use the form {setting.example} ({setting.help})",
            ) from None


def _read_file(file: Path | None, environ: Mapping[str, str]) -> _File:
    path = file or find_config_file(environ)
    wanted = file is not None or bool(_trim(environ, FILE_VARIABLE))
    try:
        content = path.read_bytes()
    except OSError as error:
        if not wanted:
            return _File(path=None, entries={}, text="")
        reason = error.strerror or "unreadable"
        raise ConfigError(f'cannot read the config file "{path}": {reason}') from None
    import tomllib

    try:
        text = content.decode()
        entries = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f'cannot read the config file "{path}": {error}',
            hint="use lines such as: context_length = 8192",
        ) from None
    read = _File(path=path, entries=entries, text=text)
    known = [setting.key for setting in SETTINGS]
    for key in entries:
        if key not in known and not is_removed(key):
            where = read.place((key,))
            raise ConfigError(
                f'cannot use "{key}" in {where}: not a setting', hint=suggest_setting(key, known)
            )
    return read


RELEASES_URL = "VLLAMA_RELEASES_URL"
"""A mirror of llama.cpp's releases, which answers as GitHub's API does."""

OURS = (RELEASES_URL,)
"""Variables that are no settings."""


_SERVICE_LINK = re.compile(r"VLLAMA_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")


def _is_other(name: str, text: str) -> bool:
    """Return whether this is no setting: ours, or Kubernetes', as a Service is called vllama."""
    is_link = _SERVICE_LINK.fullmatch(name) and (name != "VLLAMA_PORT" or "://" in text)
    return bool(is_link) or name in OURS


def _unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    own = {name.removeprefix(ENV_PREFIX): name for name in known if name.startswith(ENV_PREFIX)}
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and name not in known and not is_removed(name):
            # the prefix that all share says nothing
            bare = name.removeprefix(ENV_PREFIX)
            near = find_similar(ELSEWHERE.get(bare.lower(), bare), own)
            yield f"{name} is not a setting" + (f"; did you mean {own[near[0]]}?" if near else "")
