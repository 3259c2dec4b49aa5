"""The settings in effect as text without secrets: `vllama config`, `/api/config` and the log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from vllama.config.setting import Setting
from vllama.config.settings import SETTINGS, Config
from vllama.config.table_fields import HIDDEN
from vllama.config.toml_lines import write_keys
from vllama.plan.report import mask

DEFAULT = "default"
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


def list_values(setting: Setting, config: Config) -> Iterator[tuple[str, object, str]]:
    """Yield the key, the value and the text of a setting; of tables by name those of each field."""
    value = getattr(config, setting.field)
    if setting.kind.list_fields is None or not value:
        yield setting.key, value, _format_value(setting, value)
        return
    for keys, one, text in setting.kind.list_fields(value):
        yield write_keys((setting.key, *keys)), one, _CREDENTIALS.sub(HIDDEN, text)


def _make_rows(setting: Setting, config: Config) -> Iterator[dict[str, Any]]:
    for key, _, text in list_values(setting, config):
        yield {
            "key": key,
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
