"""`vllama list`: the models on this disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from vllama.base.errors import VllamaError
from vllama.base.units import rfc3339_local
from vllama.cli.context import load_settings, local_library
from vllama.cli.model_view import COLUMNS, OPTIONAL_COLUMNS, make_rows
from vllama.cli.options import AsJson, argument
from vllama.cli.output import say_aside, show_json, show_table
from vllama.models.types import Bundle

if TYPE_CHECKING:
    from vllama.models.library import Library


EXAMPLES = """\
\b
Examples:
  vllama list
  vllama list qwen
  vllama list --json
"""


def list_models(
    part: Annotated[str, argument("PART", "Part of the name of the models to list.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the models on this machine."""
    library, wanted = local_library(load_settings()), part.lower()
    found = sorted(library.list(), key=lambda bundle: -bundle.modified_s)
    entries = [_entry(library, one) for one in found if _is_called(library, one, wanted)]
    skipped = [one for one in library.stored.skipped() if wanted in one.name.lower()]
    if as_json:
        left_out = [
            {"name": one.name, "store": one.store, "path": str(one.path), "reason": one.reason}
            for one in skipped
        ]
        show_json({"models": entries, "skipped": left_out})
        return
    show_table(COLUMNS, make_rows(entries), OPTIONAL_COLUMNS)
    for one in skipped:
        say_aside(f"left out: {one.name} ({one.store}, {one.path}): {one.reason}")


def _is_called(library: Library, bundle: Bundle, part: str) -> bool:
    """Tell whether a model's name, or one that it was pulled by, has `part` in it."""
    asked = library.stored.names.list_asked(bundle.name)
    return any(part in name for name in (bundle.name.lower(), *asked))


def _entry(library: Library, bundle: Bundle) -> dict[str, object]:
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
        "revision": bundle.revision,
        "asked_as": library.stored.names.list_asked(bundle.name),
        "base": bundle.base,
    }


def _quant(library: Library, bundle: Bundle) -> str | None:
    """Return the quantisation that the file itself states, if its name does not."""
    try:
        return library.info(bundle).quant
    except VllamaError:  # it is listed all the same
        return None
