"""What changes when the settings are read again while the server runs. Pure.

Everything is taken over but the rows in `FIXED`. Of what is taken over, the settings of an engine
matter to the next load: a model that is loaded stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from vllama.config.load import as_text
from vllama.config.settings import Config
from vllama.config.table import SETTINGS

FIXED = frozenset(
    {
        *("scheme", "host", "port", "model"),  # what is done once, at the start
        *("upstreams", "upstream_key", "engine_paths"),  # engines are looked for once
        *("gpu_overhead_bytes", "replicas"),  # running engines are counted by them
        *("tls_cert", "tls_key"),  # the same files are read again
        *("data_dir", "log_dir", "run_dir", "log_format", "drain_timeout_s"),
    }
)
"""Fields of `Config` that a running server keeps."""


class Changes(Struct, frozen=True, kw_only=True):
    """The settings to go on with, and what to tell: `taken` over, and `kept` until a restart."""

    config: Config
    taken: tuple[str, ...]
    kept: tuple[str, ...]


def changes(old: Config, new: Config) -> Changes:
    """Compare the settings in use with those read again; secrets are named, not shown."""
    fixed = {name: getattr(old, name) for name in FIXED}
    return Changes(
        config=replace(new, **fixed),
        taken=tuple(_told(old, new, fixed=False)),
        kept=tuple(_told(old, new, fixed=True)),
    )


def _told(old: Config, new: Config, *, fixed: bool) -> Iterator[str]:
    for setting in SETTINGS:
        before, after = getattr(old, setting.field), getattr(new, setting.field)
        if before == after or (setting.field in FIXED) is not fixed:
            continue
        if setting.secret:
            yield setting.key
        else:
            yield f"{setting.key} ({_text(before)} → {_text(after)})"


def _text(value: object) -> str:
    """Write a value in a line; of a list or a table its items."""
    if not isinstance(value, tuple):
        return "unset" if value is None else as_text(value)
    items = ("=".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in value)
    return ", ".join(items) or "none"
