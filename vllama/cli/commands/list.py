"""`vllama list`: the models on this disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from vllama.base.errors import VllamaError
from vllama.base.units import format_bytes_decimal, rfc3339_local
from vllama.cli.context import connect, load_settings, local_library
from vllama.cli.model_view import COLUMNS, OPTIONAL_COLUMNS, make_rows
from vllama.cli.options import AsJson, argument, option
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
  vllama list --nodes    models of all cluster nodes
"""


def list_models(
    part: Annotated[str, argument("PART", "Part of the model names.")] = "",
    nodes: Annotated[bool, option("--nodes", "List the models of all cluster nodes.")] = False,
    as_json: AsJson = False,
) -> None:
    """List installed models."""
    wanted = part.lower()
    if nodes:
        show_all_nodes(wanted, as_json=as_json)
        return
    library = local_library(load_settings())
    found = sorted(library.list(), key=lambda bundle: -bundle.modified_s)
    entries = [_entry(library, one) for one in found if _is_called(library, one, wanted)]
    skipped = [one for one in library.list_skipped() if wanted in one.name.lower()]
    if as_json:
        left_out = [
            {"name": one.name, "store": one.store, "path": str(one.path), "reason": one.reason}
            for one in skipped
        ]
        show_json({"models": entries, "skipped": left_out})
        return
    none = f"No model's name contains '{part}'." if found and part else "No models installed."
    empty = f"{none} Find one: vllama recommend"
    show_table(COLUMNS, make_rows(entries), OPTIONAL_COLUMNS, empty)
    for one in skipped:
        say_aside(f"ignored: {one.name} ({one.store}, {one.path}): {one.reason}")


def show_all_nodes(wanted: str, *, as_json: bool) -> None:
    """List the models that the head of a cluster has, and which machines they lie on."""
    with connect() as client:
        models = client.get("/api/tags")["models"]
        told = client.get("/api/nodes")
    places = {"here": told.get("here", ())} | {x["name"]: x["models"] for x in told["nodes"]}
    shown = [
        {**model, "nodes": [place for place, names in places.items() if model["name"] in names]}
        for model in models
        if wanted in model["name"].lower()
    ]
    if as_json:
        show_json({"models": shown})
        return
    rows = [
        (row["name"], format_bytes_decimal(row["size"]), ", ".join(row["nodes"])) for row in shown
    ]
    show_table(("NAME", "SIZE", "NODES"), rows, empty="No models on any node.")


def _is_called(library: Library, bundle: Bundle, part: str) -> bool:
    """Tell whether a model's name, or one that it was pulled by, has `part` in it."""
    asked = library.names.list_asked(bundle.name)
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
        "asked_as": library.names.list_asked(bundle.name),
        "base": bundle.base,
    }


def _quant(library: Library, bundle: Bundle) -> str | None:
    """Return the quantization that the file itself states, if its name does not."""
    try:
        return library.info(bundle).quant
    except VllamaError:  # it is listed all the same
        return None
