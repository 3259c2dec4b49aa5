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
    """Return the config file, and for each setting its value as text, source, default and help."""
    return {
        "file": str(config.config_file or ""),
        "settings": [_make_row(setting, config) for setting in SETTINGS],
    }


def _make_row(setting: Setting, config: Config) -> dict[str, Any]:
    return {
        "key": setting.key,
        "text": _format_value(setting, getattr(config, setting.field)),
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
