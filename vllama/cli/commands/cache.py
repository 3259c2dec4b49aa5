"""`vllama cache`: the conversations that are kept on disk."""

from __future__ import annotations

import time
from typing import Annotated

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
    from vllama.scheduler.slot_cache.blocks import measure_blocks, remove_blocks
    from vllama.scheduler.slot_cache.store import Saved, read_records, remove_where

    folder = load_settings().slot_dir
    name = None if model is None else ModelRef.parse(model).display

    def is_meant(each: Saved) -> bool:
        return name in (None, each.model) and key in (None, each.key_name)

    kept = {} if key else measure_blocks(folder)  # vLLM's, which are told by no key
    blocks = {each: found for each, found in kept.items() if name in (None, each)}
    if action == "rm":
        require_agreement("Remove all conversations?", yes=yes or bool(model or key))
        found = remove_where(folder, is_meant)
        for each in blocks:
            remove_blocks(folder, each)
        size_bytes = sum(each.size_bytes for each in found) + sum(n for n, _ in blocks.values())
        if as_json:
            show_json({"removed": len(found), "size_bytes": size_bytes})
        else:
            say(f"conversations removed: {len(found)} ({format_bytes_decimal(size_bytes)})")
        return
    found = sorted(filter(is_meant, read_records(folder)), key=lambda each: -each.used_at)
    names = ("model", "key_name", "tokens", "size_bytes", "saved_at", "used_at", "hits")
    rows = [{each: getattr(saved, each) for each in names} for saved in found]
    for each, (size_bytes, used_at) in sorted(blocks.items()):
        known = {"model": each, "size_bytes": size_bytes, "used_at": used_at}
        rows.append(dict.fromkeys(names) | known)
    if as_json:
        show_json(rows)
        return
    if not rows:
        say("No conversations are stored: vllama serve --cache-disk 20GB stores them.")
        return
    now_s = time.time()
    cells = [
        (
            row["model"],
            row["key_name"] or "-",
            _show(row["tokens"]),
            format_bytes_decimal(row["size_bytes"]),
            format_ago(max(0.0, now_s - row["used_at"])),
            _show(row["hits"]),
        )
        for row in rows
    ]
    show_table(COLUMNS, cells, optional=("KEY",))


def _show(number: int | None) -> str:
    return "-" if number is None else str(number)
