"""`vllama cache`: the conversations that are stored on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from vllama.base.errors import NotFound
from vllama.base.units import format_ago, format_bytes_decimal, rfc3339_local
from vllama.cli.context import load_settings
from vllama.cli.options import AsJson, complete_key, model_argument, option, yes_option
from vllama.cli.output import require_agreement, say, show_item, show_json, show_table

if TYPE_CHECKING:
    from vllama.scheduler.slot_cache.store import Saved

EXAMPLES = """\
\b
Examples:
  vllama cache
  vllama cache show smollm2:135m
  vllama cache remove smollm2:135m
  vllama cache remove --key alice
  vllama cache remove --yes          remove all of them

Servers with --cache-disk store conversations; see docs/guide/running.md.
"""
Blocks = dict[str, tuple[int, float]]
COLUMNS = ("MODEL", "KEY", "TOKENS", "SIZE", "USED", "HITS")

Model: TypeAlias = Annotated[str | None, model_argument("Only conversations of this model.")]
Shown: TypeAlias = Annotated[str, model_argument("Model of the conversations.")]
Key: TypeAlias = Annotated[
    str | None, option("--key NAME", "Only conversations of this key.", complete_key)
]


def list_conversations(model: Model = None, key: Key = None, as_json: AsJson = False) -> None:
    """List stored conversations."""
    rows = _read_rows(model, key)
    if as_json:
        show_json(rows)
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
    empty = "No conversations are stored. To store them: vllama serve --cache-disk 20GB"
    show_table(COLUMNS, cells, optional=("KEY",), empty=empty)


def show(model: Shown, key: Key = None, as_json: AsJson = False) -> None:
    """Show the number, size and use of a model's stored conversations."""
    rows = _read_rows(model, key)
    if not rows:
        raise NotFound(f"no conversations of '{model}' are stored", hint="list all: vllama cache")
    item = {"model": rows[0]["model"], "conversations": len(rows)}
    item |= {each: sum(row[each] or 0 for row in rows) for each in ("tokens", "size_bytes", "hits")}
    item["used_at"] = rfc3339_local(max(row["used_at"] for row in rows))
    show_item(item, as_json=as_json)


def remove(
    model: Model = None,
    key: Key = None,
    yes: Annotated[bool, yes_option()] = False,
    as_json: AsJson = False,
) -> None:
    """Remove stored conversations: all, or only those of a model or a key."""
    from vllama.scheduler.slot_cache.blocks import remove_blocks
    from vllama.scheduler.slot_cache.store import remove_where

    folder, is_meant, blocks = _select(model, key)
    require_agreement("Remove all conversations?", yes=yes or bool(model or key))
    found = remove_where(folder, is_meant)
    for each in blocks:
        remove_blocks(folder, each)
    size_bytes = sum(each.size_bytes for each in found) + sum(n for n, _ in blocks.values())
    if as_json:
        show_json({"removed": len(found), "size_bytes": size_bytes})
    else:
        say(f"conversations removed: {len(found)} ({format_bytes_decimal(size_bytes)})")


ACTIONS = {"list": list_conversations, "show": show, "remove": remove}


def _read_rows(model: str | None, key: str | None) -> list[dict[str, Any]]:
    """Return conversations, the last used first, then the blocks that engines store themselves."""
    from vllama.scheduler.slot_cache.store import read_records

    folder, is_meant, blocks = _select(model, key)
    found = sorted(filter(is_meant, read_records(folder)), key=lambda each: -each.used_at)
    names = ("model", "key_name", "tokens", "size_bytes", "saved_at", "used_at", "hits")
    rows = [{each: getattr(saved, each) for each in names} for saved in found]
    for each, (size_bytes, used_at) in sorted(blocks.items()):
        known = {"model": each, "size_bytes": size_bytes, "used_at": used_at}
        rows.append(dict.fromkeys(names) | known)
    return rows


def _select(model: str | None, key: str | None) -> tuple[Path, Callable[[Saved], bool], Blocks]:
    """Return the folder, a predicate for conversations, and vLLM's blocks, which have no key."""
    from vllama.models.names.ref import ModelRef
    from vllama.scheduler.slot_cache.blocks import measure_blocks

    folder = load_settings().slot_dir
    name = None if model is None else ModelRef.parse(model).display
    kept = {} if key else measure_blocks(folder)
    blocks = {each: found for each, found in kept.items() if name in (None, each)}
    return folder, lambda it: name in (None, it.model) and key in (None, it.key_name), blocks


def _show(number: int | None) -> str:
    return "-" if number is None else str(number)
