"""Records of usage: amounts of each request, and the admissions that a rate still counts."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec

from vllama.base import journal, private

MOST = 1 << 62
"""Sums stay below it, so that the database can hold them."""

Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
DAY_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
Day = Annotated[str, msgspec.Meta(pattern=DAY_PATTERN)]


class Amounts(msgspec.Struct, kw_only=True):
    """Totals of requests: their number, tokens, and time in microseconds.

    `prompt_tokens` include the `cached_tokens`, which the engine had computed before. `spend` is
    that of the `priced_requests`, by the prices of their time, in fractions as in `money`.
    """

    requests: Number = 0
    prompt_tokens: Number = 0
    cached_tokens: Number = 0
    generated_tokens: Number = 0
    duration_us: Number = 0
    priced_requests: Number = 0
    spend: Number = 0

    @property
    def tokens(self) -> int:
        """All tokens: those of the prompts and those that were generated."""
        return self.prompt_tokens + self.generated_tokens

    def add(self, other: Amounts) -> None:
        """Add the amounts of other requests."""
        for name in self.__struct_fields__:
            setattr(self, name, min(MOST, getattr(self, name) + getattr(other, name)))


class Served(msgspec.Struct, frozen=True, array_like=True, tag="served"):
    """A request that has been answered. `key` is the name of its key, "" without one.

    `day` is the one (UTC) on which its answer ended. `identity` is what the limits of the key are
    counted by; "" if there are none to count. `group` is the name of the key's, "" without one.
    `user` is the one that a proxy has named.
    """

    day: Day
    key: str
    model: str
    amounts: Amounts
    identity: str = ""
    group: str = ""
    user: str = ""


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag="admitted"):
    """An admission of a key that has a rate; it counts until `until_s`. Times are Unix seconds.

    With `tokens` it is no admission, but what a key has used that has a limit by the minute.
    """

    identity: str
    time_s: Time
    until_s: Time
    tokens: Number = 0


Entry = Served | Admitted


class UsedBefore(msgspec.Struct, kw_only=True):
    """Usage that limits still count: by day; and recent tokens by time, 0 for an admission."""

    tokens: dict[str, int] = {}
    spend: dict[str, int] = {}
    recent: list[tuple[float, int]] = []


def identify_group(name: str) -> str:
    """Return the identity of a group for the limits; no key has it."""
    return f"group {name}"


def identify_model(owner: str, model: str) -> str:
    """Return the identity of a key or group with one model, for the limits."""
    return f"model {model} of {owner}"


decode_entry = msgspec.json.Decoder(Entry).decode
_encoder = msgspec.json.Encoder()


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as a line of a journal."""
    return _encoder.encode(entry) + b"\n"


def sum_up(entries: Iterable[Entry]) -> list[Entry]:
    """Return fewer entries that say the same: one for all that a key has asked of a model a day."""
    sums: dict[tuple[str, str, str, str, str, str], Amounts] = {}
    others: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Served):
            place = entry.day, entry.key, entry.model, entry.identity, entry.group, entry.user
            sums.setdefault(place, Amounts()).add(entry.amounts)
        else:
            others.append(entry)
    return others + [
        Served(day, key, model, amounts, *more)
        for (day, key, model, *more), amounts in sums.items()
    ]


def name_day(time_s: float) -> str:
    """Return the day (UTC) of a Unix time, as `2026-11-23`."""
    return _name_day(int(time_s // 86_400))


@lru_cache(maxsize=4)
def _name_day(days: int) -> str:
    return datetime.fromtimestamp(days * 86_400, UTC).date().isoformat()


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


SUFFIX = ".journal"


class Journal:
    """A file that is only appended to. All methods raise OSError."""

    def __init__(self, path: Path) -> None:
        """Create the file, and lock it until `close`."""
        self.path = path
        new = path.with_suffix(".new")
        self._fd = os.open(new, journal.FLAGS | os.O_EXCL, private.FILE)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        new.rename(path)  # only now, since one that is not locked seems to be abandoned

    @property
    def size_bytes(self) -> int:
        """The size of the file, which is open."""
        return os.fstat(self._fd).st_size

    def append(self, line: bytes) -> None:
        """Add a line, or nothing of it."""
        journal.append(self._fd, line)

    def close(self) -> None:
        """Close the file, and remove it."""
        self.path.unlink(missing_ok=True)
        os.close(self._fd)


@contextmanager
def take_over(path: Path) -> Iterator[bytes | None]:
    """Return the content of an abandoned journal; it is removed unless the context raises.

    None for a journal whose server runs, or that another server has just taken over.
    """
    try:
        file = private.open_file(path)
    except FileNotFoundError:
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield file.read() if path.exists() else None
        path.unlink(missing_ok=True)
