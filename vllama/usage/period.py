"""The days of which somebody asks what was used."""

from __future__ import annotations

import re
from datetime import date

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def check_day(text: str) -> str:
    """Return a day of the calendar, such as 2026-11-23. Raises ValueError for anything else."""
    if not _DAY.fullmatch(text):
        raise ValueError(f"'{text}' is not a day; write it like 2026-11-23")
    try:
        date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a day of the calendar") from None
    return text


def check_period(since: str, until: str) -> None:
    """Check the first and the last day; "" is no bound. Raises ValueError."""
    for day in (since, until):
        if day:
            check_day(day)
    if since and until and since > until:
        raise ValueError(f"the first day, {since}, is after the last day, {until}")
