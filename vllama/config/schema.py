"""The settings described for others: a JSON Schema of the config file, and the reference page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllama.config.setting import Setting
from vllama.config.settings import SETTINGS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def file_schema() -> dict[str, Any]:
    """Return a JSON Schema of the config file, with which editors complete and check it."""
    return {
        "$schema": DIALECT,
        "title": "Settings of vllama",
        "type": "object",
        "additionalProperties": False,
        "properties": {setting.key: _describe(setting) for setting in SETTINGS},
    }


def _describe(setting: Setting) -> dict[str, Any]:
    described = {**setting.kind.schema, "description": setting.help, "examples": [setting.example]}
    if setting.default not in (None, ()):
        default = setting.default
        described["default"] = setting.default_text if isinstance(default, float) else default
    return described


def reference_rows() -> tuple[Mapping[str, str], ...]:
    """Return all settings as rows of text, for the generated page of the documentation."""
    return tuple(
        {
            "key": setting.key,
            "flag": setting.flag or "",
            "env": setting.env,
            "foreign": setting.foreign or "",
            "default": setting.default_text,
            "example": setting.example,
            "help": setting.help,
            "effect": setting.effect,
        }
        for setting in SETTINGS
    )
