"""The database of what was used: a row for each day, key and model. SQLite, in the data folder."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

from vllama import private
from vllama.usage.entries import Admitted, Entry, Served, decode_entries, sum_up
from vllama.usage.journal import SUFFIX, take_over

FILE_NAME = "usage.db"
BUSY_S, BUSY_RETRY_S = 30.0, 0.01
_COLUMNS = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens", "duration_us")
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS usage (
  day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
  {", ".join(f"{name} INTEGER NOT NULL" for name in _COLUMNS)},
  PRIMARY KEY (day, key, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journals (name TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS admitted (
  key TEXT NOT NULL, time_s REAL NOT NULL, until_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS tokens (
  day TEXT NOT NULL, key TEXT NOT NULL, tokens INTEGER NOT NULL,
  PRIMARY KEY (day, key)
) WITHOUT ROWID
"""
"""`usage` is for people, by the names of keys. `tokens` (of the latest day) and `admitted` are for
limits, by the identities of keys: another key may have had the same name before.
"""
_ADD = (
    f"INSERT INTO usage (day, key, model, {', '.join(_COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _COLUMNS)
)
_ADD_TOKENS = (
    "INSERT INTO tokens VALUES (?, ?, ?) "
    "ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens"
)


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the database to write-ahead logging, which it keeps from then on.

    SQLite refuses this at once while another connection writes, however long this one would wait.
    """
    give_up_s = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF  # the primary one, without its extension
            if code != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_s:
                raise
        time.sleep(BUSY_RETRY_S)


class UsageRow(Struct, frozen=True, kw_only=True):
    """The sums of the requests that have these values in common; "" for what was not asked for.

    `seconds` is the sum of the times from each request to the end of its answer.
    """

    day: str = ""
    key: str = ""
    model: str = ""
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    seconds: float


class UsageStore:
    """The database, and the journals beside it. Its methods may be called by any thread.

    All raise OSError or sqlite3.Error.
    """

    def __init__(self, folder: Path) -> None:
        """Open the database, which is created if it is missing."""
        self.folder = folder
        private.make_folder(folder)
        path = folder / FILE_NAME
        path.touch(private.FILE)  # SQLite gives its other files the same mode
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
        _use_write_ahead_log(self._connection)
        # NORMAL writes to the disk at checkpoints only: a power cut may lose the last transactions,
        # but not the end of a process, and nothing is ever damaged
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()

    def fold(self, journal: str, size_bytes: int, entries: Iterable[Entry], now_s: float) -> None:
        """Add the entries of a journal, which ends them at `size_bytes`, in one transaction."""
        entries = list(entries)
        admitted = [one for one in entries if isinstance(one, Admitted) and one.until_s > now_s]
        rows = [
            (*place, *(getattr(amounts, name) for name in _COLUMNS))
            for place, amounts in sum_up(entries).items()
        ]
        tokens = [
            (one.day, one.identity, one.amounts.tokens)
            for one in entries
            if isinstance(one, Served) and one.identity
        ]
        with self._lock, self._connection as database:
            database.executemany(_ADD, rows)
            database.executemany(_ADD_TOKENS, tokens)
            database.execute("DELETE FROM tokens WHERE day < (SELECT MAX(day) FROM tokens)")
            database.execute("DELETE FROM admitted WHERE until_s <= ?", (now_s,))
            database.executemany(
                "INSERT INTO admitted VALUES (?, ?, ?)",
                [(one.identity, one.time_s, one.until_s) for one in admitted],
            )
            database.execute("REPLACE INTO journals VALUES (?, ?)", (journal, size_bytes))

    def forget_journal(self, journal: str) -> None:
        """Forget a journal whose file is gone."""
        with self._lock, self._connection as database:
            database.execute("DELETE FROM journals WHERE name = ?", (journal,))

    def take_over_journals(self, now_s: float) -> int:
        """Add what servers that were killed have left in their journals; return the entries."""
        count = 0
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            with take_over(path) as content:
                if content is None:
                    continue
                known = self._connection.execute(
                    "SELECT bytes FROM journals WHERE name = ?", (path.name,)
                ).fetchone()
                entries = decode_entries(content[known[0] if known else 0 :])
                self.fold(path.name, len(content), entries, now_s)
                count += len(entries)
            if content is not None:
                self.forget_journal(path.name)
        return count

    @contextmanager
    def replacing(self, rows: Iterable[UsageRow]) -> Iterator[None]:
        """Replace everything by `rows`; they hold only if the context ends without an error."""
        values = [
            (
                *(row.day, row.key, row.model),
                *(getattr(row, name) for name in _COLUMNS[:-1]),
                round(row.seconds * 1e6),
            )
            for row in rows
        ]
        with self._lock, self._connection as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM usage")
            database.executemany(_ADD, values)
            yield

    def list_rows(
        self,
        by: Sequence[str],
        since: str = "",
        until: str = "",
        key: str | None = None,
    ) -> list[UsageRow]:
        """Return sums by the columns in `by`, from the day `since` to `until`; `key`: of one only.

        The columns are `day`, `key` and `model`; a day is written `2026-11-23`.
        """
        names = [name for name in ("day", "key", "model") if name in by]
        sums = ", ".join(f"SUM({name})" for name in _COLUMNS)
        wanted, values = ["1"], []
        conditions = (("day >= ?", since), ("day <= ?", until), ("key = ?", key))
        for condition, value in conditions:
            if value or (value is not None and condition.startswith("key")):
                wanted.append(condition)
                values.append(value)
        columns = ", ".join(names)
        query = f"SELECT {columns}{', ' if columns else ''}{sums} FROM usage"
        query += f" WHERE {' AND '.join(wanted)}"
        query += f" GROUP BY {columns} ORDER BY {columns}" if columns else ""
        with self._lock:
            found = self._connection.execute(query, values).fetchall()
        rows = []
        for values_found in found:
            places = dict(zip(names, values_found, strict=False))
            amounts = values_found[len(names) :]
            if amounts[0] is None:  # the sum of nothing
                continue
            *counts, duration_us = amounts
            rows.append(
                UsageRow(
                    **places,
                    **dict(zip(_COLUMNS[:-1], counts, strict=True)),
                    seconds=round(duration_us / 1e6, 6),
                )
            )
        return rows

    def sum_tokens(self, day: str) -> Mapping[str, int]:
        """Return the tokens that each key used on the latest day, by the identities of keys."""
        query = "SELECT key, tokens FROM tokens WHERE day = ?"
        with self._lock, closing(self._connection.cursor()) as cursor:
            return dict(cursor.execute(query, (day,)).fetchall())

    def list_admitted(self, now_s: float) -> Mapping[str, list[float]]:
        """Return the Unix times of the admissions that still count, by the identities of keys."""
        found: dict[str, list[float]] = {}
        query = "SELECT key, time_s FROM admitted WHERE until_s > ? ORDER BY time_s"
        with self._lock, closing(self._connection.cursor()) as cursor:
            for key, time_s in cursor.execute(query, (now_s,)):
                found.setdefault(key, []).append(time_s)
        return found
