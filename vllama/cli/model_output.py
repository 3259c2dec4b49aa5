"""Output of `list`, `show` and `ps`, from what the server or the disk has."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vllama.base.units import format_bytes_decimal, format_until, parse_rfc3339
from vllama.cli import model_view
from vllama.cli.output import say, say_aside, show_json, show_table

STATES = {
    "loading": "Loading...",
    "starting": "Loading...",
    "backoff": "Restarting...",
    "failed": "Failed",
    "stopping": "Stopping...",
}
ELSEWHERE = "elsewhere"
NO_ANSWER = "Not responding"  # vllama cannot restart an upstream


def show_models(told: Mapping[str, Any], part: str, *, as_json: bool) -> None:
    """Show a list of models: those that have `part` in their name, or in one that pulls them."""
    wanted = part.lower()
    found = [
        row
        for row in told["models"]
        if any(wanted in name for name in (row["name"].lower(), *row["asked_as"]))
    ]
    skipped = [one for one in told["skipped"] if wanted in one["name"].lower()]
    if as_json:
        show_json({"models": found, "skipped": skipped})
        return
    show_table(model_view.COLUMNS, model_view.make_rows(found), model_view.OPTIONAL_COLUMNS)
    if not found:
        is_filtered = told["models"] and part
        none = f"No model's name contains '{part}'." if is_filtered else "No models installed."
        say_aside(f"{none} Find one: vllama recommend")
    for one in skipped:
        say_aside(f"ignored: {one['name']} ({one['store']}, {one['path']}): {one['reason']}")


def show_model(
    shown: Mapping[str, Any], part: str, *, as_json: bool, verbose: bool = False
) -> None:
    """Show the description of a model, or one part of it."""
    if as_json:
        show_json(shown)
    elif part:
        say(str(shown.get(part) or "").rstrip("\n"))
    else:
        for line in model_view.format_sections(model_view.make_sections(shown, verbose=verbose)):
            say(line)


def show_loaded(reply: Mapping[str, Any], prefix: str, *, as_json: bool) -> None:
    """Show the loaded models whose names begin with `prefix`."""
    found, failed = (
        [row for row in reply.get(kind) or [] if model_view.has_prefix(row, prefix)]
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
    show_table([one.title for one in columns], cells, optional=[one.title for one in going])
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
        return f"Loading {model_view.describe_load(model)}"
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
    Column("SIZE", lambda model: format_bytes_decimal(read_number(model, "size")), narrow=4),
    Column("PROCESSOR", describe_processor, narrow=2),
    Column("CONTEXT", lambda model: str(model.get("context_length") or ""), narrow=3),
    Column("UNTIL", lambda model: describe_expiry(model, time.time())),
    Column("STATE", lambda model: str(model.get("state", "")), field="requests", narrow=5),
    Column("REQUESTS", describe_requests, field="requests", narrow=6),
    Column("NODE", lambda model: str(model.get("node", "")), field="node"),
)
