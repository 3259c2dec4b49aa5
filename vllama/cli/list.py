"""`vllama list`: the models on this disk."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vllama.models.types import Bundle

COLUMNS = ("NAME", "ID", "SIZE", "MODIFIED")

EXAMPLES = """\
\b
Examples:
  vllama list
  vllama list qwen
  vllama list --json
"""


@click.argument("prefix", default="", help="Only models whose name starts so.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(prefix: str, as_json: bool) -> None:
    """List the models on this machine."""
    from vllama.cli.files import library, settings
    from vllama.cli.output import show_json, show_table

    found = sorted(library(settings()).list(), key=lambda bundle: -bundle.modified_s)
    start = prefix.lower()
    if as_json:
        entries = [_entry(bundle) for bundle in found if bundle.name.lower().startswith(start)]
        show_json({"models": entries})
    else:
        show_table(COLUMNS, model_rows([_entry(bundle) for bundle in found], start))


def model_rows(models: Sequence[Mapping[str, object]], start: str = "") -> list[tuple[str, ...]]:
    """Return the rows of a table from entries as in `/api/tags`, of names that begin so."""
    from vllama.units import format_bytes_decimal

    now_s = time.time()
    return [
        (
            name,
            str(model.get("digest", ""))[:12],
            format_bytes_decimal(int(str(model.get("size") or 0))),
            _ago(str(model.get("modified_at", "")), now_s),
        )
        for model in models
        if (name := str(model.get("name", ""))).lower().startswith(start)
    ]


def _ago(stamp: str, now_s: float) -> str:
    from vllama.units import format_ago, parse_rfc3339

    try:
        return format_ago(max(0.0, now_s - parse_rfc3339(stamp)))
    except ValueError:  # another server than ours may leave it out
        return ""


def _entry(bundle: Bundle) -> dict[str, object]:
    from vllama.units import rfc3339_local

    return {
        "name": bundle.name,
        "model": bundle.name,
        "digest": bundle.digest,
        "size": bundle.size_bytes,
        "modified_at": rfc3339_local(bundle.modified_s),
        "format": str(bundle.format),
        "quantization_level": bundle.quant,
        "store": bundle.store,
        "path": str(bundle.path),
    }
