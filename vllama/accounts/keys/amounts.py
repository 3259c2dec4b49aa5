"""The limits of a key as users write them: `60/min`, `1M/day`, `30d`."""

from __future__ import annotations

import re

from msgspec import Struct

DAY_S = 86_400.0
MONTH = "month"
_PERIODS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": DAY_S}
_PERIOD_NAMES = {
    **dict.fromkeys(("s", "sec", "second"), "s"),
    **dict.fromkeys(("m", "min", "minute"), "min"),
    **dict.fromkeys(("h", "hour"), "h"),
    **dict.fromkeys(("d", "day"), "day"),
}
_MULTIPLES = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_AGES_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}
_MAX_AGE_S = 36_500 * DAY_S
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmg]?)", re.IGNORECASE)
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", re.IGNORECASE)


class Rate(Struct, frozen=True):
    """At most `count` requests within any `period`: `s`, `min`, `h` or `day`.

    Tokens are limited so too: within any `min`, or by `day` or `month` of the calendar (UTC).
    """

    count: int
    period: str

    @property
    def period_s(self) -> float:
        """The length of the period in seconds."""
        return _PERIODS_S[self.period]

    def __str__(self) -> str:
        return f"{self.count}/{self.period}"


def parse_rate(text: str) -> Rate:
    """Read `60/min` or `1000/h`. Raises ValueError."""
    count, slash, period = text.strip().partition("/")
    known = _PERIOD_NAMES.get(period.strip().lower())
    if not slash or known is None:
        raise ValueError("write it like 60/min; the periods are s, min, h and day")
    return Rate(parse_count(count), known)


def parse_tokens(text: str) -> Rate:
    """Read `1M/day`, `20k/min` or `30M/month`; without a period, by day. Raises ValueError."""
    count, slash, period = text.strip().partition("/")
    name = period.strip().lower() if slash else "day"
    known = name if name == MONTH else _PERIOD_NAMES.get(name)
    if known not in ("min", "day", MONTH):
        raise ValueError("write it like 1M/day; the periods are minute, day and month")
    return Rate(parse_count(count), known)


def parse_count(text: str) -> int:
    """Read a positive number such as `500`, `20k` or `1.5M`. Raises ValueError."""
    match = _COUNT.fullmatch(text.strip())
    exact = float(match[1]) * _MULTIPLES[match[2].lower()] if match else 0
    count = round(exact) if exact < 2**53 else 0
    if count < 1:
        raise ValueError(f"'{text.strip()}' is not a positive number; write it like 500 or 20k")
    return count


def parse_age(text: str) -> float:
    """Read a duration such as `12h`, `30d` or `2w`; return seconds. Raises ValueError."""
    match = _AGE.fullmatch(text.strip())
    unit_s = _AGES_S.get(match[2].lower()) if match else None
    if match is None or unit_s is None or not 0 < float(match[1]) * unit_s < _MAX_AGE_S:
        raise ValueError(f"'{text.strip()}' is no duration; write it like 12h, 30d or 2w")
    return float(match[1]) * unit_s


def format_count(count: int) -> str:
    """Write a number as users write it: `1M`, `20k`, `1500`."""
    for letter, size in (("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)):
        if count >= size and count % size == 0:
            return f"{count // size}{letter}"
    return str(count)
