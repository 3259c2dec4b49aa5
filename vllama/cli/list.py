"""`vllama list`: the models on this disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vllama.models.types import Bundle

EXAMPLES = """\
\b
Examples:
  vllama list
  vllama list qwen
  vllama list --json
"""


def list_models(
    prefix: Annotated[
        str | None, typer.Argument(metavar="PREFIX", help="Only models whose name starts so.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models on this machine."""
    from vllama.cli.files import library, settings
    from vllama.cli.output import show_json, show_table
    from vllama.units import format_ago, format_bytes_decimal

    start = (prefix or "").lower()
    found = [b for b in library(settings()).list() if b.name.lower().startswith(start)]
    found.sort(key=lambda bundle: -bundle.modified_s)
    if as_json:
        show_json({"models": [_entry(bundle) for bundle in found]})
        return
    now_s = time.time()
    show_table(
        ("NAME", "ID", "SIZE", "MODIFIED"),
        [
            (
                bundle.name,
                bundle.digest[:12],
                format_bytes_decimal(bundle.size_bytes),
                format_ago(max(0.0, now_s - bundle.modified_s)),
            )
            for bundle in found
        ],
    )


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
