"""What changes when the settings are read again while the server runs. Pure.

All settings are taken over except those that are declared to need a restart, and the last key.
Settings of an engine matter to the next load: a model that is loaded stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vllama.config.report import list_values
from vllama.config.settings import SETTINGS, Config
from vllama.config.table_fields import HIDDEN
from vllama.errors import ConfigError

KEPT = frozenset({"scheme", *(each.field for each in SETTINGS if each.needs_restart)})
"""Fields of `Config` that a running server keeps."""
KEYS = frozenset({"api_key", "api_key_file"})
"""Fields that it keeps, too, if they have no key any more: a reload never opens a server to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The settings to go on with; the changes that were `taken` over, and those `kept` back."""

    config: Config
    taken: tuple[str, ...]
    kept: tuple[str, ...]


def compare_settings(old: Config, new: Config, *, named_keys: bool = False) -> Changes:
    """Compare the settings in use with those read again; secrets are named, not shown.

    `named_keys`: requests need a key even if the settings have none. Raises ConfigError if the
    config file has vanished: an empty one would say that all settings have their defaults.
    """
    if old.config_file is not None and new.config_file is None:
        raise ConfigError(
            f'cannot read the config file "{old.config_file}": it is not there any more',
            hint="put it back, or restart the server to run without it",
        )
    opens = bool(old.api_key) and not new.api_key and not named_keys
    kept = KEPT | KEYS if opens else KEPT
    sources = {name: origin for name, origin in new.sources.items() if name not in kept}
    sources |= {name: origin for name, origin in old.sources.items() if name in kept}
    return Changes(
        config=replace(new, **{name: getattr(old, name) for name in kept}, sources=sources),
        taken=tuple(text for field, text in _changed(old, new) if field not in kept),
        kept=tuple(text for field, text in _changed(old, new) if field in kept),
    )


def _changed(old: Config, new: Config) -> Iterator[tuple[str, str]]:
    """Yield the fields that differ, each with lines that say so; of tables what differs in them."""
    for setting in SETTINGS:
        if getattr(old, setting.field) == getattr(new, setting.field):
            continue
        before, after = (
            {key: (value, text) for key, value, text in list_values(setting, config)}
            for config in (old, new)
        )
        differing = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        if not differing:
            yield setting.field, f"{setting.key} (another order)"
        for key in differing:
            was, now = (found.get(key, (None, "none"))[1] for found in (before, after))
            is_shown = was != now and HIDDEN not in (was, now)
            yield setting.field, f"{key} ({was} → {now})" if is_shown else key
