"""The settings as text without secrets: in effect, changed by a reload, and described for others.

For `vllama config`, `/api/config`, the log, and as a JSON Schema and the reference page. Each
setting is declared with its `Effect`: a reload takes over all except those that need a restart, and
the last key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Struct

from vllama.base.errors import ConfigError
from vllama.base.meaning import says
from vllama.base.setting import Effect, Setting, describe_fields
from vllama.base.toml_lines import write_keys
from vllama.config.secrets import mask
from vllama.config.settings import GROUPS, SETTINGS, Config

DEFAULT = "default"
HIDDEN = "…"
"""What stands for a secret."""
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class SettingRow(Struct, frozen=True, kw_only=True):
    """A setting with its value."""

    key: Annotated[str, says("key in the config file")]
    text: Annotated[str, says("current value; secrets are hidden")]
    source: Annotated[str, says("source of the value")]
    default: Annotated[str, says("default value")]
    help: Annotated[str, says("description")]
    effect: Annotated[Effect, says("time when a change of the config file takes effect")]
    needs_restart: Annotated[bool, says("true if a change requires a restart")]
    group: Annotated[str, says("topic of the setting")]
    changeable: Annotated[bool, says("true if `PATCH /api/config` may change it")]
    schema: Annotated[Mapping[str, Any], says("JSON Schema of its values")]


class Settings(Struct, frozen=True):
    """The settings in effect, and the config file."""

    file: Annotated[str, says("path of the config file; empty if there is none")]
    refused: Annotated[str, says("reason why the config file is not in effect; empty if it is")]
    settings: Annotated[list[SettingRow], says("all settings")]


def report_settings(config: Config, refused: str = "") -> Settings:
    """Return the config file, and for each setting its value as text, source, default and help."""
    rows = [row for setting in SETTINGS for row in _make_rows(setting, config)]
    return Settings(str(config.config_file or ""), refused, rows)


def list_values(setting: Setting, config: Config) -> Iterator[tuple[str, object, str, Effect]]:
    """Yield key, value, text and effect of a setting; of tables by name those of each field."""
    value = getattr(config, setting.field)
    if setting.kind.list_fields is None or not value:
        yield setting.key, value, _format_value(setting, value), setting.effect
        return
    for keys, one, field in setting.kind.list_fields(value):
        text = _format_value(field or setting, one)
        yield write_keys((setting.key, *keys)), one, text, (field or setting).effect


def _make_rows(setting: Setting, config: Config) -> Iterator[SettingRow]:
    source = config.sources.get(setting.field) or DEFAULT
    for key, _, text, effect in list_values(setting, config):
        yield SettingRow(
            key=key,
            text=text,
            source=source,
            default=setting.default_text,
            help=setting.help,
            effect=effect,
            needs_restart=effect is Effect.RESTART,
            group=GROUPS[setting.field],
            changeable=setting.remote and source in (DEFAULT, str(config.config_file)),
            schema=setting.kind.schema,
        )


def _format_value(setting: Setting, value: Any) -> str:
    if setting.secret and value not in (None, ()):
        return HIDDEN
    if setting.field == "engine_args":
        value = tuple(mask(value))
    return _CREDENTIALS.sub(HIDDEN, setting.kind.text(value))


KEPT = frozenset({"scheme", *(each.field for each in SETTINGS if each.effect is Effect.RESTART)})
"""Fields of `Config` that a running server keeps."""
KEYS = frozenset({"api_key", "api_key_file"})
"""Fields that it keeps, too, if they have no key any more: a reload never opens a server to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The settings to go on with, and what has changed, one line each.

    `taken` holds from now on, `loaded` for models that are loaded from now on; `kept` needs a
    restart. Settings of commands are in none of them.
    """

    config: Config
    taken: tuple[str, ...]
    loaded: tuple[str, ...]
    kept: tuple[str, ...]


def compare_settings(old: Config, new: Config, *, named_keys: bool = False) -> Changes:
    """Compare the settings in use with those read again; secrets are named, not shown.

    `named_keys`: requests need a key even if the settings have none. Raises ConfigError if the
    config file has vanished: an empty one would say that all settings have their defaults.
    """
    if old.config_file is not None and new.config_file is None:
        raise ConfigError(
            f'cannot read the config file "{old.config_file}": it no longer exists',
            hint="restore it, or restart the server to run without it",
        )
    opens = bool(old.api_key) and not new.api_key and not named_keys
    kept = KEPT | KEYS if opens else KEPT
    sources = {name: origin for name, origin in new.sources.items() if name not in kept}
    sources |= {name: origin for name, origin in old.sources.items() if name in kept}
    lines: dict[Effect, list[str]] = {effect: [] for effect in Effect}
    for field, effect, text in _list_changes(old, new):
        lines[Effect.RESTART if field in kept else effect].append(text)
    return Changes(
        config=replace(new, **{name: getattr(old, name) for name in kept}, sources=sources),
        taken=tuple(lines[Effect.NOW]),
        loaded=tuple(lines[Effect.NEXT_LOAD]),
        kept=tuple(lines[Effect.RESTART]),
    )


def _list_changes(old: Config, new: Config) -> Iterator[tuple[str, Effect, str]]:
    """Yield each field that differs, its effect and a line about it; of tables each one in them."""
    for setting in SETTINGS:
        if getattr(old, setting.field) == getattr(new, setting.field):
            continue
        nested = setting.kind.list_fields is not None
        before, after = (
            {row[0]: row for row in list_values(setting, config) if row[1] != () or not nested}
            for config in (old, new)
        )
        differing = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        if not differing:
            yield setting.field, setting.effect, f"{setting.key} (different order)"
        for key in differing:
            *_, was, effect = before.get(key, (key, None, "none", setting.effect))
            *_, now, effect = after.get(key, (key, None, "none", effect))
            is_shown = was != now and HIDDEN not in (was, now)
            yield setting.field, effect, f"{key} ({was} → {now})" if is_shown else key


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def file_schema() -> dict[str, Any]:
    """Return a JSON Schema of the config file, with which editors complete and check it."""
    schema = describe_fields(SETTINGS)
    for setting in SETTINGS:
        described, default = schema["properties"][setting.key], setting.default
        is_literal = re.fullmatch(r"true|false|\d+", setting.example)
        described["examples"] = [json.loads(setting.example) if is_literal else setting.example]
        if default not in (None, ()):
            described["default"] = setting.default_text if isinstance(default, float) else default
    return {"$schema": DIALECT, "title": "vllama settings", **schema}
