"""`vllama list`: the models on this disk."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from vllama.cli.options import AsJson, argument

if TYPE_CHECKING:
    from vllama.models.library import Library
    from vllama.models.types import Bundle, Skipped

COLUMNS = ("NAME", "ID", "SIZE", "MODIFIED", "FORMAT", "QUANT", "STORE")
"""Ollama's four first: scripts count on them."""

EXAMPLES = """\
\b
Examples:
  vllama list
  vllama list qwen
  vllama list --json
"""


def list_models(
    prefix: Annotated[str, argument("PREFIX", "Only models whose name starts so.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the models on this machine."""
    from vllama.cli.context import load_settings, local_library
    from vllama.cli.output import say_aside, show_json, show_table

    library, start = local_library(load_settings()), prefix.lower()
    found = sorted(library.list(), key=lambda bundle: -bundle.modified_s)
    entries = [_entry(library, one) for one in found if one.name.lower().startswith(start)]
    skipped = [one for one in library.skipped() if one.name.lower().startswith(start)]
    if as_json:
        show_json({"models": entries, "skipped": [_skipped(one) for one in skipped]})
        return
    show_table(COLUMNS, make_rows(entries))
    for one in skipped:
        say_aside(f"left out: {one.name} ({one.store}, {one.path}): {one.reason}")


def make_rows(models: Sequence[Mapping[str, object]], start: str = "") -> list[tuple[str, ...]]:
    """Return table rows of entries as in `/api/tags` whose names begin with `start`."""
    from vllama.units import format_bytes_decimal

    now_s = time.time()
    return [
        (
            name,
            str(model.get("digest", ""))[:12],
            format_bytes_decimal(int(str(model.get("size") or 0))),
            _ago(str(model.get("modified_at", "")), now_s),
            _word(model, "format"),
            _word(model, "quantization_level"),
            str(model.get("store") or "-"),
        )
        for model in models
        if (name := str(model.get("name", ""))).lower().startswith(start)
    ]


def _word(model: Mapping[str, object], key: str) -> str:
    """Return one of the details; `-` for none, so that no column is empty."""
    details = model.get("details")
    value = details.get(key) if isinstance(details, Mapping) else None
    return str(value or "-")


def _ago(stamp: str, now_s: float) -> str:
    from vllama.units import format_ago, parse_rfc3339

    try:
        return format_ago(max(0.0, now_s - parse_rfc3339(stamp)))
    except ValueError:  # other servers may leave it out
        return ""


def _entry(library: Library, bundle: Bundle) -> dict[str, object]:
    from vllama.units import rfc3339_local

    quant = bundle.quant or _quant(library, bundle)
    return {
        "name": bundle.name,
        "model": bundle.name,
        "digest": bundle.digest,
        "size": bundle.size_bytes,
        "modified_at": rfc3339_local(bundle.modified_s),
        "format": str(bundle.format),
        "quantization_level": quant,
        "details": {"format": str(bundle.format), "quantization_level": quant},
        "store": bundle.store,
        "path": str(bundle.path),
        "files": [str(path) for path in bundle.files],
        "hub_id": bundle.hub_id,
        "base": bundle.base,
    }


def _quant(library: Library, bundle: Bundle) -> str | None:
    """Return the quantisation that the file itself states, if its name does not."""
    from vllama.errors import VllamaError

    try:
        return library.info(bundle).quant
    except VllamaError:  # it is listed all the same
        return None


def _skipped(one: Skipped) -> dict[str, object]:
    return {"name": one.name, "store": one.store, "path": str(one.path), "reason": one.reason}
