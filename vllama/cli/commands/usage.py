"""`vllama usage`: requests, tokens and time by key, model and day."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from vllama.base.errors import ConfigError, ServerUnreachable
from vllama.cli.context import connect, load_settings
from vllama.cli.options import AsJson, option
from vllama.cli.output import say_aside, show_json, show_table
from vllama.config import Config

EXAMPLES = """\
\b
Examples:
  vllama usage                        by day, key and model
  vllama usage --by key --since 7d
  vllama usage --by group --since 30d     cost, for models with prices
  vllama usage --by day,model --since 2026-11-01 --csv > november.csv

Days are in UTC. Without a running server, the command reads its data folder.
"""
COLUMNS = ("day", "key", "group", "user", "model")
COUNTS = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens", "seconds")
SPEND = ("spend", "unpriced")
TITLES = ("REQUESTS", "PROMPT", "CACHED", "GENERATED", "SECONDS")


def usage(
    by: Annotated[
        str, option("--by COLUMNS", "Columns, comma-separated: day, key, group, user, model.")
    ] = "day,key,model",
    since: Annotated[str, option("--since DAY|AGE", "First day: 2026-11-23, 7d or today.")] = "",
    until: Annotated[str, option("--until DAY", "Last day: 2026-11-23.")] = "",
    as_csv: Annotated[bool, option("--csv", "Print CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show requests, tokens and time by key, model and day."""
    columns = read_columns(by)
    period = read_period(since, until)
    found = fetch_usage(load_settings(), columns, *period)
    rows, currency = found["usage"], found.get("currency", "")
    if as_json:
        show_json(found)
        return
    if as_csv:
        writer = csv.DictWriter(sys.stdout, [*columns, *COUNTS, *SPEND], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        return
    titles = [*map(str.upper, columns), *TITLES, f"SPEND ({currency})", "UNPRICED"]
    cells = [
        [
            *(str(row[name]) or "-" for name in columns),
            *(str(row[name]) for name in COUNTS[:-1]),
            f"{row['seconds']:.1f}",
            "no price" if (spend := row.get("spend")) is None else f"{spend:.4f}",
            str(row.get("unpriced", "-")),
        ]
        for row in rows
    ]
    empty = "No requests in this period."
    show_table(titles, cells, optional=("CACHED", "UNPRICED"), empty=empty)


def read_columns(by: str) -> list[str]:
    """Return the columns of `--by` in the order in which they are shown. Raises ConfigError."""
    names = {name.strip() for name in by.split(",")} - {""}
    if not names or names - set(COLUMNS):
        raise ConfigError(f"cannot group usage by '{by}'", hint=f"choose from {', '.join(COLUMNS)}")
    return [name for name in COLUMNS if name in names]


def read_period(since: str, until: str) -> tuple[str, str]:
    """Return the first and the last day as the server wants them. Raises ConfigError."""
    from vllama.accounts.usage.entries import check_period

    days = read_day(since), read_day(until)
    try:
        check_period(*days)
    except ValueError as error:
        raise ConfigError(f"cannot show usage: {error}") from None
    return days


def read_day(text: str) -> str:
    """Return a day as the server wants it; an age is that of the day. Raises ConfigError."""
    from vllama.accounts.keys.key import parse_age
    from vllama.accounts.usage.entries import name_day

    if not text or (text[:4].isdecimal() and text[4:5] == "-"):
        return text
    if text == "today":
        return name_day(time.time())
    try:
        return name_day(time.time() - parse_age(text))
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"cannot read the day '{text}'", hint="use a date like 2026-11-23, or an age like 7d"
        ) from None


def fetch_usage(settings: Config, columns: Sequence[str], since: str, until: str) -> dict[str, Any]:
    """Return the rows and the currency from the running server, else from the data folder."""
    query = urlencode({"by": ",".join(columns), "since": since, "until": until})
    try:
        with connect(settings) as client:
            return dict(client.get(f"/api/usage?{query}"))
    except ServerUnreachable:
        say_aside(f"No server is running; data from '{settings.data_dir}'")
        rows = read_folder(settings, columns, since, until)
        return {"usage": rows, "currency": settings.currency}


def read_folder(
    settings: Config, columns: Sequence[str], since: str = "", until: str = "", key: str = ""
) -> list[dict[str, Any]]:
    """Return the rows of the data folder, or only those of a key. Raises ConfigError."""
    import msgspec

    from vllama.accounts.usage.store import FAILURES, UsageStore

    try:
        store = UsageStore(settings.data_dir / "usage")
        store.take_over_journals(time.time())
        rows = store.list_rows(columns, since, until, key or None)
        store.close()
    except FAILURES as error:
        raise ConfigError(f"cannot read usage in '{settings.data_dir}': {error}") from None
    found: list[dict[str, Any]] = msgspec.to_builtins(rows)
    return found
