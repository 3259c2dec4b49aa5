"""`vllama ps`: the models that are loaded, or the requests that run."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

from vllama.base.units import format_ago, parse_rfc3339
from vllama.cli.context import connect
from vllama.cli.model_output import show_loaded
from vllama.cli.model_view import has_prefix
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


def ps(
    prefix: Annotated[str, argument("PREFIX", "Prefix of the model names.")] = "",
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
    show_loaded(reply, prefix, as_json=as_json)


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
    )
    waiting = Counter((row["model"], row["waits_for"]) for row in found if row.get("waits_for"))
    for (model, reason), count in waiting.items():
        say_aside(
            f"{model}: {count} {'request waits' if count == 1 else 'requests wait'} for {reason}"
        )
