"""`vllama events`: what the server does, as it happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from vllama.base.log_lines import escape_control
from vllama.cli.context import connect
from vllama.cli.options import AsJson
from vllama.cli.output import say, show_json_line

EXAMPLES = """\
\b
Examples:
  vllama events
  vllama events --json    each event of GET /api/events as one line of JSON
"""


def events(as_json: AsJson = False) -> None:
    """Stream server events."""
    with connect() as client:
        for name, data in client.follow("/api/events"):
            if as_json:
                show_json_line({"event": name, "data": data})
            elif name != "snapshot":
                for line in describe(name, data):
                    say(escape_control(line))


def describe(name: str, data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each thing that has happened; what is only under way has none."""
    now = f"{datetime.now():%H:%M:%S}"
    if name == "mark":
        when = datetime.fromtimestamp(data["time"])
        yield f"{when:%H:%M:%S}  {data['kind']:8}  {data['model']}: {data['reason']}"
    for row in data.get("ended") or ():
        yield f"{now}  {'request':8}  {describe_request(row)}"
    for row in data.get("pulls") or ():
        if row["ended_at"]:
            yield f"{now}  {'pull':8}  {row['name']}: {row['error'] or row['status']}"


def describe_request(row: Mapping[str, Any]) -> str:
    """Say which request has ended, and how."""
    parts = [f"{row['path']} from {row['client']}"]
    if row["outcome"] == "ok":
        parts += [f"{row['tokens']} tokens"] if row["tokens"] else []
        parts += [f"{row['tokens_per_s']:g} tokens/s"] if row["tokens_per_s"] else []
    else:
        parts.append(row["error"] or row["outcome"])
    return f"{row['model'] or '-'}: {', '.join(parts)}, {row['seconds']:g} s"
