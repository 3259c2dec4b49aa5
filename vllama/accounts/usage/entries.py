"""What is recorded of requests: what each took, and the admissions that a rate still counts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from typing import Annotated

import msgspec

MOST = 1 << 62
"""Sums stay below it, so that the database can hold them."""

Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
DAY_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
Day = Annotated[str, msgspec.Meta(pattern=DAY_PATTERN)]


class Amounts(msgspec.Struct, kw_only=True):
    """What requests took together: their number, tokens, and time in microseconds.

    `prompt_tokens` include the `cached_tokens`, which the engine had computed before.
    """

    requests: Number = 0
    prompt_tokens: Number = 0
    cached_tokens: Number = 0
    generated_tokens: Number = 0
    duration_us: Number = 0

    @property
    def tokens(self) -> int:
        """All tokens: those of the prompts and those that were generated."""
        return self.prompt_tokens + self.generated_tokens

    def add(self, other: Amounts) -> None:
        """Add what other requests took."""
        for name in self.__struct_fields__:
            setattr(self, name, min(MOST, getattr(self, name) + getattr(other, name)))


class Served(msgspec.Struct, frozen=True, array_like=True, tag="served"):
    """A request that has been answered. `key` is the name of its key, "" without one.

    `day` is the one (UTC) on which its answer ended. `identity` is what the limits of the key are
    counted by; "" if there are none to count.
    """

    day: Day
    key: str
    model: str
    amounts: Amounts
    identity: str = ""


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag="admitted"):
    """An admission of a key that has a rate; it counts until `until_s`. Times are Unix seconds.

    With `tokens` it is no admission, but what a key has used that has a limit by the minute.
    """

    identity: str
    time_s: Time
    until_s: Time
    tokens: Number = 0


Entry = Served | Admitted

_decoder = msgspec.json.Decoder(Entry)
_encoder = msgspec.json.Encoder()


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as a line of a journal."""
    return _encoder.encode(entry) + b"\n"


def decode_entries(content: bytes) -> tuple[list[Entry], list[bytes]]:
    """Return the entries of a journal, and the lines that cannot be read."""
    entries: list[Entry] = []
    unreadable: list[bytes] = []
    for line in filter(None, content.split(b"\n")):
        try:
            entries.append(_decoder.decode(line))
        except (ValueError, RecursionError):
            unreadable.append(line)
    return entries, unreadable


def sum_up(entries: Iterable[Entry]) -> list[Entry]:
    """Return fewer entries that say the same: one for all that a key has asked of a model a day."""
    sums: dict[tuple[str, str, str, str], Amounts] = {}
    others: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Served):
            place = entry.day, entry.key, entry.model, entry.identity
            sums.setdefault(place, Amounts()).add(entry.amounts)
        else:
            others.append(entry)
    return others + [
        Served(day, key, model, sums[day, key, model, identity], identity)
        for day, key, model, identity in sums
    ]


def check_day(text: str) -> str:
    """Return a day of the calendar, such as 2026-11-23. Raises ValueError for anything else."""
    if not re.fullmatch(DAY_PATTERN, text):
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
