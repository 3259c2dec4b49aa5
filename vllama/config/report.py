"""The settings in effect as text without secrets: `vllama config`, `/api/config` and the log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from vllama.config.masking import mask
from vllama.config.setting import Effect, Setting
from vllama.config.settings import SETTINGS, Config
from vllama.config.table_fields import HIDDEN
from vllama.config.toml_lines import write_keys

DEFAULT = "default"
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class SettingRow(Struct, frozen=True, kw_only=True):
    """A setting in effect; a secret is not shown.

    `effect` tells when a change of the config file holds once the server has read it again.
    """

    key: str
    text: str
    source: str
    default: str
    help: str
    effect: Effect
    needs_restart: bool


class Settings(Struct, frozen=True):
    """The settings in effect, and the config file, empty if there is none.

    `refused` is why the server has not taken over the file as it is now, empty if it has.
    """

    file: str
    refused: str
    settings: list[SettingRow]


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
    for keys, one, text, effect in setting.kind.list_fields(value):
        yield write_keys((setting.key, *keys)), one, _CREDENTIALS.sub(HIDDEN, text), effect


def _make_rows(setting: Setting, config: Config) -> Iterator[SettingRow]:
    for key, _, text, effect in list_values(setting, config):
        yield SettingRow(
            key=key,
            text=text,
            source=config.sources.get(setting.field) or DEFAULT,
            default=setting.default_text,
            help=setting.help,
            effect=effect,
            needs_restart=effect is Effect.RESTART,
        )


def _format_value(setting: Setting, value: Any) -> str:
    if setting.secret and value not in (None, ()):
        return HIDDEN
    if setting.field == "engine_args":
        value = tuple(mask(value))
    return _CREDENTIALS.sub(HIDDEN, setting.kind.text(value))
