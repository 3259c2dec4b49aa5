"""`vllama cache`: the conversations that are kept on disk."""

from __future__ import annotations

import time
from typing import Annotated

from vllama.base.errors import ConfigError
from vllama.base.units import format_ago, format_bytes_decimal
from vllama.cli.context import load_settings
from vllama.cli.options import (
    AsJson,
    argument,
    check_action,
    complete_key,
    complete_words,
    model_argument,
    option,
    yes_option,
)
from vllama.cli.output import require_agreement, say, show_json, show_table

EXAMPLES = """\
\b
Examples:
  vllama cache
  vllama cache rm smollm2:135m
  vllama cache rm --key alice
  vllama cache rm --yes              all of them

They are kept by a server with --cache-disk; see docs/guide/running.md.
"""
ACTIONS = ("ls", "rm")
COLUMNS = ("MODEL", "KEY", "TOKENS", "SIZE", "USED", "HITS")


def cache(
    action: Annotated[
        str, argument("ACTION", f"One of {', '.join(ACTIONS)}.", complete_words(*ACTIONS))
    ] = "ls",
    model: Annotated[str | None, model_argument("Those of this model only.")] = None,
    key: Annotated[
        str | None, option("--key NAME", "Those of this key only.", complete_key)
    ] = None,
    yes: Annotated[bool, yes_option()] = False,
    as_json: AsJson = False,
) -> None:
    """List or remove the conversations that are kept on disk."""
    check_action(action, ACTIONS, "cache")
    from vllama.models.names.ref import ModelRef
    from vllama.scheduler.slot_cache.store import Saved, read_records, remove_where

    folder = load_settings().slot_dir
    name = None if model is None else ModelRef.parse(model).display

    def is_meant(each: Saved) -> bool:
        return name in (None, each.model) and key in (None, each.key_name)

    if action == "rm":
        if as_json:
            raise ConfigError("cannot print JSON: rm only says what is removed")
        require_agreement("Remove all conversations?", yes=yes or bool(model or key))
        found = remove_where(folder, is_meant)
        size = format_bytes_decimal(sum(each.size_bytes for each in found))
        say(f"conversations removed: {len(found)} ({size})")
        return
    found = sorted(filter(is_meant, read_records(folder)), key=lambda each: -each.used_at)
    if as_json:
        names = ("model", "key_name", "tokens", "size_bytes", "saved_at", "used_at", "hits")
        show_json([{each: getattr(saved, each) for each in names} for saved in found])
        return
    now_s = time.time()
    rows = [
        (
            each.model,
            each.key_name or "-",
            str(each.tokens),
            format_bytes_decimal(each.size_bytes),
            format_ago(max(0.0, now_s - each.used_at)),
            str(each.hits),
        )
        for each in found
    ]
    show_table(COLUMNS, rows, optional=("KEY",))
