"""`vllama ps`: the models that are loaded, or the requests that run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

from vllama.base.units import (
    format_ago,
    format_amount,
    format_bytes_decimal,
    format_until,
    parse_rfc3339,
)
from vllama.cli.context import connect
from vllama.cli.model_view import describe_load, has_prefix
from vllama.cli.options import AsJson, argument, option
from vllama.cli.output import say_aside, show_json, show_table

if TYPE_CHECKING:
    from vllama.cli.client import Client

EXAMPLES = """\
\b
Examples:
  vllama ps
  vllama ps --requests       requests and their progress
  vllama ps --json
"""

STATES = {
    "loading": "Loading...",
    "starting": "Loading...",
    "backoff": "Restarting...",
    "failed": "Failed",
    "stopping": "Stopping...",
}
ELSEWHERE = "elsewhere"
NO_ANSWER = "Not responding"  # vllama cannot restart an upstream


def ps(
    prefix: Annotated[str, argument("PREFIX", "Start of the model names.")] = "",
    requests: Annotated[
        bool, option("--requests", "List running and queued requests instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List loaded models, or running requests."""
    with connect() as client:
        if requests:
            show_requests(client, prefix, as_json=as_json)
            return
        reply = client.get("/api/ps")
    found, failed = (
        [row for row in reply.get(kind) or [] if has_prefix(row, prefix)]
        for kind in ("models", "failed")
    )
    if as_json:
        show_json({"models": found} | ({"failed": failed} if failed else {}))
        return
    columns = [
        column
        for column in COLUMNS
        if not column.field or any(column.field in row for row in found)
    ]
    cells = [[column.make_cell(row) for column in columns] for row in found]
    going = sorted((column for column in columns if column.narrow), key=lambda one: one.narrow)
    empty = "" if failed else f"No models{prefix and f' named {prefix}…'} are loaded."
    show_table([one.title for one in columns], cells, [one.title for one in going], empty)
    for row in (*found, *failed):
        if row.get("cause"):
            say_aside(describe_cause(row))
        if row.get("placement") and read_number(row, "size_vram"):
            say_aside(f"{row['name']}: {row['placement']}")
        if (kept := row.get("conversations")) and kept["count"]:
            size = format_bytes_decimal(kept["size"])
            many = "conversation" if kept["count"] == 1 else "conversations"
            say_aside(
                f"{row['name']}: {kept['count']} {many} on disk, {size}, restored {kept['hits']} "
                f"{'time' if kept['hits'] == 1 else 'times'}"
            )
        if others := row.get("other_names"):
            say_aside(f"{row['name']} shares its engine with {', '.join(others)}")


def show_requests(client: Client, prefix: str, *, as_json: bool) -> None:
    """Show the requests to models whose names begin with `prefix`, the oldest first."""
    found = [row for row in client.get("/api/requests")["requests"] if has_prefix(row, prefix)]
    if as_json:
        show_json({"requests": found})
        return
    now_s = time.time()
    show_table(
        ("ID", "MODEL", "ROUTE", "CLIENT", "KEY", "SINCE", "STATE", "TOKENS"),
        [
            (
                str(row["id"]),
                str(row["model"]),
                str(row["path"]),
                str(row["client"] or "-"),
                str(row["key"] or "-"),
                format_ago(max(0.0, now_s - parse_rfc3339(str(row["started_at"])))),
                str(row["state"]),
                str(row["generated_tokens"]),
            )
            for row in found
        ],
        optional=("KEY", "ROUTE", "CLIENT", "STATE", "SINCE"),
        empty=f"No requests{prefix and f' to {prefix}…'} are running.",
    )
    waiting = Counter((row["model"], row["waits_for"]) for row in found if row.get("waits_for"))
    for (model, reason), count in waiting.items():
        say_aside(
            f"{model}: {count} {'request waits' if count == 1 else 'requests wait'} for {reason}"
        )


def describe_requests(model: Mapping[str, object]) -> str:
    """Say how many requests run, how many can at once, and how many wait."""
    if "requests" not in model:
        return ""
    # how many an upstream takes at once is its own affair
    running = str(model["requests"])
    if not is_remote(model):
        running += f"/{model.get('slots', '?')}"
    return f"{running}, {model['queued']} waiting" if model.get("queued") else running


def describe_cause(row: Mapping[str, object]) -> str:
    """Say why a model is not being served."""
    text = f"{row.get('name')} ({row.get('state')}): {row['cause']}"
    if hint := row.get("hint"):
        text += f"; {hint}"
    return text


def is_remote(model: Mapping[str, object]) -> bool:
    """Tell whether an upstream serves the model."""
    details = model.get("details")
    return isinstance(details, dict) and details.get("format") == "remote"


def describe_processor(model: Mapping[str, object]) -> str:
    """Say which processor holds a model, as Ollama does."""
    size_bytes, vram_bytes = read_number(model, "size"), read_number(model, "size_vram")
    if is_remote(model):
        return ELSEWHERE
    if vram_bytes == 0:
        return "100% CPU"
    if vram_bytes == size_bytes:
        return "100% GPU"
    if vram_bytes > size_bytes or size_bytes == 0:
        return "Unknown"
    cpu = int(100 * (size_bytes - vram_bytes) / size_bytes + 0.5)
    return f"{cpu}%/{100 - cpu}% CPU/GPU"


def describe_expiry(model: Mapping[str, object], now_s: float) -> str:
    """Say when a model will be unloaded, or its state if it is not ready."""
    if model.get("load"):
        return f"Loading {describe_load(model)}"
    if state := STATES.get(str(model.get("state", ""))):
        return NO_ANSWER if is_remote(model) and state == STATES["backoff"] else state
    try:
        left_s = parse_rfc3339(str(model.get("expires_at", ""))) - now_s
    except ValueError:
        return "Never"
    return "Stopping..." if left_s < 0 else format_until(left_s)


def read_number(model: Mapping[str, object], name: str) -> int:
    """Return a number of a row; 0 where it is missing."""
    value = model.get(name)
    return int(value) if isinstance(value, (int, float)) else 0


class Column(NamedTuple):
    """A column of the table: its title, and how a cell is made of a row of `/api/ps`.

    Without `field` in any row it is left out: an Ollama's rows have only Ollama's own. `narrow` is
    the order, from 1, in which columns go where the terminal is too narrow; 0: never.
    """

    title: str
    make_cell: Callable[[Mapping[str, object]], str]
    field: str = ""
    narrow: int = 0


COLUMNS = (  # Ollama's first: scripts count on them
    Column("NAME", lambda model: str(model.get("name", ""))),
    Column("ID", lambda model: str(model.get("digest", ""))[:12], narrow=1),
    Column("SIZE", lambda model: format_amount(read_number(model, "size")), narrow=4),
    Column("PROCESSOR", describe_processor, narrow=2),
    Column("CONTEXT", lambda model: str(model.get("context_length") or ""), narrow=3),
    Column("UNTIL", lambda model: describe_expiry(model, time.time())),
    Column("STATE", lambda model: str(model.get("state", "")), field="requests", narrow=5),
    Column("REQUESTS", describe_requests, field="requests", narrow=6),
    Column("NODE", lambda model: str(model.get("node", "")), field="node"),
)
