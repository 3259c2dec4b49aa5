"""`vllama list`: the models on this disk."""

from __future__ import annotations

from typing import Annotated

from vllama.base.units import format_bytes_decimal
from vllama.cli.context import connect, load_settings, local_library
from vllama.cli.model_output import show_models
from vllama.cli.options import AsJson, argument, option
from vllama.cli.output import show_json, show_table

EXAMPLES = """\
\b
Examples:
  vllama list
  vllama list qwen
  vllama list --json
  vllama list --nodes    models of all cluster nodes
"""


def list_models(
    part: Annotated[str, argument("PART", "Text in the model names.")] = "",
    nodes: Annotated[bool, option("--nodes", "List the models of all cluster nodes.")] = False,
    as_json: AsJson = False,
) -> None:
    """List installed models."""
    if nodes:
        show_all_nodes(part.lower(), as_json=as_json)
        return
    library = local_library(load_settings())
    from vllama.models.library import describe_models

    show_models(describe_models(library), part, as_json=as_json)


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
    show_table(("NAME", "SIZE", "NODES"), rows)
