"""`vllama nodes`: the machines of a cluster."""

from __future__ import annotations

import time
from typing import Annotated
from urllib.parse import quote

from vllama.base.errors import ConfigError
from vllama.base.units import format_ago, format_bytes_decimal, parse_rfc3339
from vllama.cli.context import connect
from vllama.cli.options import AsJson, argument, check_action, complete_words, option
from vllama.cli.output import say, say_aside, show_json, show_table

EXAMPLES = """\
\b
Examples:
  vllama nodes
  vllama nodes --model qwen3:8b      also the node that would answer, and why
  vllama nodes drain 10.0.0.5        finishes its answers, gets no new ones
  vllama nodes undrain 10.0.0.5
  vllama nodes key > node.key        a key for --node-key-file of all servers

See docs/guide/cluster.md.
"""
ACTIONS = ("list", "drain", "undrain", "key")
COLUMNS = (
    "NODE",
    "STATE",
    "GPU FREE",
    "RAM FREE",
    "MODELS",
    "LOADED",
    "RUNNING",
    "WAITING",
    "SEEN",
)
OPTIONAL_COLUMNS = ("SEEN", "MODELS", "WAITING", "RAM FREE", "GPU FREE")


def nodes(
    action: Annotated[
        str, argument("ACTION", f"One of {', '.join(ACTIONS)}.", complete_words(*ACTIONS))
    ] = "list",
    name: Annotated[str | None, argument("NAME", "The node to drain.")] = None,
    model: Annotated[
        str | None, option("--model NAME", "Also tell which node would answer for a model.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the other machines of a cluster, or send one no more requests."""
    check_action(action, ACTIONS, "nodes")
    if action == "key":
        from vllama.accounts.keys.key import make_secret

        say(make_secret())
        return
    if (action == "list") != (name is None):
        raise ConfigError(
            "name the node: vllama nodes drain NAME, vllama nodes undrain NAME",
            hint="see which there are: vllama nodes",
        )
    with connect() as client:
        if name is not None:
            row = client.post(f"/api/nodes/{quote(name, safe='')}/{action}", {})
            say(f"{row['name']}: {row['state']}")
            return
        reply = client.get("/api/nodes" + (f"?model={quote(model)}" if model else ""))
    if as_json:
        show_json(reply)
        return
    now_s = time.time()
    rows = [
        (
            str(row["name"]),
            str(row["state"]),
            format_bytes_decimal(row["gpu_free"]) if row["gpu_free"] else "-",
            format_bytes_decimal(row["ram_free"]) if row["ram_free"] else "-",
            str(len(row["models"])),
            ", ".join(row["loaded"]) or "-",
            str(row["running"]),
            str(row["waiting"]),
            format_ago(max(0.0, now_s - parse_rfc3339(row["seen_at"]))) if row["seen_at"] else "-",
        )
        for row in reply["nodes"]
    ]
    show_table(COLUMNS, rows, optional=OPTIONAL_COLUMNS)
    for row in reply["nodes"]:
        if row["trouble"]:
            say_aside(f"{row['name']}: {row['trouble']}")
    if choice := reply.get("choice"):
        say_aside(f"{model} is answered by {choice['name']}: {choice['reason']}")
