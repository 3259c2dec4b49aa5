"""What changes when the settings are read again while the server runs. Pure.

All settings are taken over except those that are declared to need a restart. Settings of an engine
matter to the next load: a model that is loaded stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vllama.config.settings import SETTINGS, Config

KEPT = frozenset({"scheme", *(each.field for each in SETTINGS if each.needs_restart)})
"""Fields of `Config` that a running server keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The settings to go on with; the changes that were `taken` over, and those `kept` back."""

    config: Config
    taken: tuple[str, ...]
    kept: tuple[str, ...]


def compare_settings(old: Config, new: Config) -> Changes:
    """Compare the settings in use with those read again; secrets are named, not shown."""
    return Changes(
        config=replace(new, **{name: getattr(old, name) for name in KEPT}),
        taken=tuple(_changed(old, new, needs_restart=False)),
        kept=tuple(_changed(old, new, needs_restart=True)),
    )


def _changed(old: Config, new: Config, *, needs_restart: bool) -> Iterator[str]:
    for setting in SETTINGS:
        before, after = getattr(old, setting.field), getattr(new, setting.field)
        if before == after or setting.needs_restart is not needs_restart:
            continue
        text = setting.kind.text
        yield setting.key if setting.secret else f"{setting.key} ({text(before)} → {text(after)})"
