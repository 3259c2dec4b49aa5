"""`vllama nodes`: the machines of a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import quote

from vllama.base.errors import ConfigError, VllamaError
from vllama.base.spelling import find_named
from vllama.base.units import format_ago, format_bytes_decimal, parse_rfc3339
from vllama.base.units import format_amount as in_memory
from vllama.cli.context import connect
from vllama.cli.options import AsJson, argument, option
from vllama.cli.output import say, say_aside, show_item, show_json, show_table
from vllama.targets.nodes.choose import describe_differing

if TYPE_CHECKING:
    from vllama.cli.client import Client

EXAMPLES = """\
\b
Examples:
  vllama nodes
  vllama nodes --model qwen3:8b      also show the node for the next request
  vllama nodes show 10.0.0.5
  vllama nodes drain 10.0.0.5        running requests finish, new ones go elsewhere
  vllama nodes undrain 10.0.0.5
  vllama nodes key > node.key        create a key for --node-key-file

See docs/guide/cluster.md.
"""
COLUMNS = (
    "NODE", "STATE", "GPU FREE", "RAM FREE", "MODELS", "LOADED", "RUNNING", "WAITING", "SEEN",
)  # fmt: skip
OPTIONAL_COLUMNS = ("SEEN", "MODELS", "WAITING", "RAM FREE", "GPU FREE")


Name: TypeAlias = Annotated[str, argument("NODE", "Name of the node.")]


def list_nodes(
    model: Annotated[
        str | None, option("--model NAME", "Also show the node for the next request.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List nodes with their memory and models."""
    with connect() as client:
        reply = client.get("/api/nodes" + (f"?model={quote(model)}" if model else ""))
    if as_json:
        show_json(reply)
        return
    now_s = time.time()
    rows = [
        (
            str(row["name"]),
            str(row["state"]),
            in_memory(row["gpu_free"]) if row["gpu_free"] else "-",
            in_memory(row["ram_free"]) if row["ram_free"] else "-",
            str(len(row["models"])),
            ", ".join(row["loaded"]) or "-",
            str(row["running"]),
            str(row["waiting"]),
            format_ago(max(0.0, now_s - parse_rfc3339(row["seen_at"]))) if row["seen_at"] else "-",
        )
        for row in reply["nodes"]
    ]
    empty = "This server has no nodes. To add one: vllama serve --node http://HOST:11434"
    show_table(COLUMNS, rows, optional=OPTIONAL_COLUMNS, empty=empty)
    for row in reply["nodes"]:
        if row["trouble"]:
            say_aside(f"{row['name']}: {row['trouble']}")
    for name, digests in reply.get("differing", {}).items():
        say_aside(describe_differing(name, digests))
    if choice := reply.get("choice"):
        say_aside(f"{model} runs on {choice['name']}: {choice['reason']}")


def show(name: Name, as_json: AsJson = False) -> None:
    """Show state, memory, models and requests of a node."""
    with connect() as client:
        rows = {row["name"]: row for row in client.get("/api/nodes")["nodes"]}
    show_item(find_named("node", name, rows, "list the nodes: vllama nodes"), as_json=as_json)


def drain(name: Name) -> None:
    """Send a node no new requests; running requests finish."""
    change_state(name, "drain")


def undrain(name: Name) -> None:
    """Send a node requests again."""
    change_state(name, "undrain")


def change_state(name: str, action: str) -> None:
    """Drain or undrain a node, and print its state."""
    with connect() as client:
        row = client.post(f"/api/nodes/{quote(name, safe='')}/{action}", {})
    say(f"{row['name']}: {row['state']}")


def make_key() -> None:
    """Create a key for --node-key-file of all servers."""
    from vllama.accounts.keys.key import make_secret

    say(make_secret())


ACTIONS = {
    "list": list_nodes, "show": show, "drain": drain, "undrain": undrain, "key": make_key,
}  # fmt: skip


def plan_on_nodes(models: Sequence[str], *, as_json: bool) -> int:
    """Print the plan of each node for a model, and the node that the next request would get."""
    if len(models) != 1:
        raise ConfigError("cannot plan several models on nodes", hint="specify one model")
    (model,) = models
    with connect() as client:
        told = client.get("/api/nodes")
        own = [{"name": "here", "state": "up"}] if told.get("here") else []
        plans = {row["name"]: ask_node(client, row, model) for row in [*told["nodes"], *own]}
        try:
            choice = client.get(f"/api/nodes?model={quote(model)}")["choice"]
        except VllamaError as error:  # nobody has it yet, or its node is lost
            choice = {"name": None, "reason": error.message}
    if as_json:
        show_json({"plans": plans, "choice": choice})
        return 0
    show_table(
        ("NODE", "ENGINE", "QUANT", "CONTEXT", "MEMORY", "DOWNLOAD", "PLAN"),
        [(name, *describe_plan(plan)) for name, plan in plans.items()],
        optional=("QUANT", "DOWNLOAD", "CONTEXT"),
    )
    goes = f"goes to {choice['name']}" if choice["name"] else "is rejected"
    say_aside(f"the next request {goes}: {choice['reason']}")
    return 0


def ask_node(client: Client, row: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the plan of a node, or why it has none."""
    if row["state"] == "lost":
        return {"error": row["trouble"]}
    try:
        return client.post(f"/api/plan?node={quote(row['name'])}", {"model": model})
    except VllamaError as error:
        return {"error": error.message}


def describe_plan(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a plan's row."""
    need, load = plan.get("memory", {}).get("total_bytes"), plan.get("download_bytes")
    return (
        plan.get("engine") or "-",
        plan.get("quantization") or "-",
        str(plan.get("context_length") or "-"),
        in_memory(need) if need else "-",
        format_bytes_decimal(load) if load else "-",
        plan.get("error") or "fits",
    )
