"""The settings in effect as plain values without secrets, for `vllama config` and `/api/config`."""

from __future__ import annotations

import re
from typing import Any

from vllama.config.setting import Setting
from vllama.config.settings import SETTINGS, Config
from vllama.plan.report import mask

DEFAULT = "default"
HIDDEN = "…"
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def report_settings(config: Config) -> dict[str, Any]:
    """Return the config file, and for each setting its value as text, source, default and help.

    `refused` is for a running server, which keeps its settings if those in the file are wrong.
    """
    return {
        "file": str(config.config_file or ""),
        "refused": "",
        "settings": [row for setting in SETTINGS for row in _make_rows(setting, config)],
    }


def _make_rows(setting: Setting, config: Config) -> list[dict[str, Any]]:
    """Return the row of a setting; of tables by name one each."""
    value = getattr(config, setting.field)
    if not setting.kind.is_nested or not value:
        return [_make_row(setting, config, _format_value(setting, value))]
    items = setting.kind.list_items(value)
    return [_make_row(setting, config, _CREDENTIALS.sub(HIDDEN, item)) for item in items]


def _make_row(setting: Setting, config: Config, text: str) -> dict[str, Any]:
    return {
        "key": setting.key,
        "text": text,
        "source": config.sources.get(setting.field) or DEFAULT,
        "default": setting.default_text,
        "help": setting.help,
        "needs_restart": setting.needs_restart,
    }


def _format_value(setting: Setting, value: Any) -> str:
    if setting.secret and value not in (None, ()):
        return HIDDEN
    if setting.field == "engine_args":
        value = tuple(mask(value))
    return _CREDENTIALS.sub(HIDDEN, setting.kind.text(value))
