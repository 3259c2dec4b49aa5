"""What changes when the settings are read again while the server runs. Pure.

Each setting is declared with its `Effect`. All are taken over except those that need a restart,
and the last key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vllama.base.errors import ConfigError
from vllama.config.report import list_values
from vllama.config.setting import Effect
from vllama.config.settings import SETTINGS, Config
from vllama.config.table_fields import HIDDEN

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
            f'cannot read the config file "{old.config_file}": it is not there any more',
            hint="put it back, or restart the server to run without it",
        )
    opens = bool(old.api_key) and not new.api_key and not named_keys
    kept = KEPT | KEYS if opens else KEPT
    sources = {name: origin for name, origin in new.sources.items() if name not in kept}
    sources |= {name: origin for name, origin in old.sources.items() if name in kept}
    lines: dict[Effect, list[str]] = {effect: [] for effect in Effect}
    for field, effect, text in _changed(old, new):
        lines[Effect.RESTART if field in kept else effect].append(text)
    return Changes(
        config=replace(new, **{name: getattr(old, name) for name in kept}, sources=sources),
        taken=tuple(lines[Effect.NOW]),
        loaded=tuple(lines[Effect.NEXT_LOAD]),
        kept=tuple(lines[Effect.RESTART]),
    )


def _changed(old: Config, new: Config) -> Iterator[tuple[str, Effect, str]]:
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
            yield setting.field, setting.effect, f"{setting.key} (another order)"
        for key in differing:
            *_, was, effect = before.get(key, (key, None, "none", setting.effect))
            *_, now, effect = after.get(key, (key, None, "none", effect))
            is_shown = was != now and HIDDEN not in (was, now)
            yield setting.field, effect, f"{key} ({was} → {now})" if is_shown else key
