"""The database of what was used: a row for each day, key and model. SQLite, in the data folder."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from msgspec import Struct, ValidationError, convert
from msgspec.structs import astuple

from vllama.accounts.usage.entries import (
    SUFFIX,
    Admitted,
    Amounts,
    Day,
    Entry,
    Number,
    Time,
    UsedBefore,
    decode_entry,
    identify_group,
    identify_model,
    sum_up,
    take_over,
)
from vllama.accounts.usage.money import UNIT
from vllama.base import journal, private
from vllama.base.meaning import says

log = logging.getLogger(__name__)

FILE_NAME, QUARANTINE_NAME, ASIDE = "usage.db", "unreadable-lines", ".damaged-"
BUSY_S, BUSY_RETRY_S = 5.0, 0.01
VERSION = 4
KEPT_DAYS = 100
"""Days whose tokens are kept for limits: more than a month, and those to which a clock jumps."""
COLUMNS = ("day", "key", "group", "user", "model")
_COLUMNS = Amounts.__struct_fields__
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS usage (
  day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, "group" TEXT NOT NULL DEFAULT '',
  user TEXT NOT NULL DEFAULT '',
  {", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in _COLUMNS)},
  PRIMARY KEY (day, key, model, "group", user)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journals (name TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (
  day TEXT NOT NULL, key TEXT NOT NULL, tokens INTEGER NOT NULL, spend INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (day, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS recent (
  key TEXT NOT NULL, time_s REAL NOT NULL, until_s REAL NOT NULL, tokens INTEGER NOT NULL
);
PRAGMA user_version = {VERSION}
"""
"""`usage` is for people, by the names of keys. `tokens` and `recent` are for limits, by the
identities of keys and groups: another key may have had the same name before.
"""
_UPGRADE = f"""
ALTER TABLE usage RENAME TO usage_old;
{_SCHEMA.partition(";")[0]};
INSERT INTO usage (COLUMNS) SELECT COLUMNS FROM usage_old;
DROP TABLE usage_old;
"""
"""From an earlier version, whose `COLUMNS` are a part of those of today."""
_UPGRADE_2 = "ALTER TABLE tokens ADD COLUMN spend INTEGER NOT NULL DEFAULT 0;"
_ADD = (
    f'INSERT INTO usage (day, key, model, "group", user, {", ".join(_COLUMNS)}) '
    f"VALUES ({', '.join('?' * (5 + len(_COLUMNS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _COLUMNS)
)
_ADD_TOKENS = (
    "INSERT INTO tokens VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
    "tokens = tokens + excluded.tokens, spend = spend + excluded.spend"
)
_PART = 10**9  # spend is summed up in two parts, as one sum may be beyond 64 bits


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
    """The sums of the requests that have these values in common; "" for what was not asked for."""

    day: Annotated[str, says("the day in UTC, if asked for")] = ""
    key: Annotated[str, says("the name of the API key")] = ""
    group: Annotated[str, says("the group that the key had")] = ""
    user: Annotated[str, says("the user whom a proxy named that the key trusts")] = ""
    model: str = ""
    requests: Annotated[int, says("how many requests there were")]
    prompt_tokens: int
    cached_tokens: Annotated[int, says("tokens of the prompts that needed no work")]
    generated_tokens: int
    seconds: Annotated[float, says("the times from each request to the end of its response")]
    spend: Annotated[float | None, says("their price; null: no request had one")] = None
    unpriced: Annotated[int, says("requests without a price, which `spend` is without")] = 0


class UsageStore:
    """The database, and the journals beside it. Its methods may be called by any thread.

    All raise one of `FAILURES`.
    """

    def __init__(self, folder: Path) -> None:
        """Open the database, which is created if it is missing."""
        self.folder, self._path = folder, folder / FILE_NAME
        private.make_folder(folder)
        for path in list_files(self._path):
            if path.exists() and not path.is_file():
                raise sqlite3.DatabaseError(f"'{path.name}' is no file")
        self._path.touch(private.FILE)  # SQLite gives its other files the same mode
        self._inode = find_inode(folder)
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(self._path, timeout=BUSY_S, check_same_thread=False)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise sqlite3.DatabaseError("it is of a newer vllama")
        _use_write_ahead_log(self._connection)
        # NORMAL writes to the disk at checkpoints only: a power cut may lose the last transactions,
        # but not the end of a process, and nothing is ever damaged
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if version < VERSION:  # else opening it writes nothing
            self._migrate()

    def _migrate(self) -> None:
        """Make the tables, or bring them up to date, unless another server has just done so."""
        with self._connection as database:
            database.execute("BEGIN IMMEDIATE")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            old = [f'"{row[1]}"' for row in database.execute("PRAGMA table_info(usage)")]
            steps = _UPGRADE.replace("COLUMNS", ", ".join(old)) * (0 < version < VERSION)
            steps += _UPGRADE_2 * (0 < version < 3)
            for statement in (steps + _SCHEMA).split(";"):
                database.execute(statement)

    def check(self) -> None:
        """Look at every page of the database. Raises sqlite3.DatabaseError for a damaged one."""
        with self._lock:
            found = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)

    @property
    def is_current(self) -> bool:
        """True if the database still lies where it was opened."""
        return find_inode(self.folder) == self._inode

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()

    def fold(self, journal: str, size_bytes: int, entries: Iterable[Entry], now_s: float) -> None:
        """Add the entries of a journal, which ends them at `size_bytes`, in one transaction."""
        rows, tokens, recent = [], [], []
        for one in sum_up(entries):
            if isinstance(one, Admitted):
                recent.append((one.identity, one.time_s, one.until_s, one.tokens))
                continue
            rows.append((one.day, one.key, one.model, one.group, one.user, *astuple(one.amounts)))
            owners = filter(None, (one.identity, one.group and identify_group(one.group)))
            limited = [each for x in owners for each in (x, identify_model(x, one.model))]
            used = one.amounts.tokens, one.amounts.spend
            tokens += [(one.day, identity, *used) for identity in limited]
        with self._lock, self._connection as database:
            database.executemany(_ADD, rows)
            database.executemany(_ADD_TOKENS, tokens)
            database.executemany("INSERT INTO recent VALUES (?, ?, ?, ?)", recent)
            database.execute("DELETE FROM recent WHERE until_s <= ?", (now_s,))
            if journal:
                database.execute("REPLACE INTO journals VALUES (?, ?)", (journal, size_bytes))

    def forget_journal(self, journal: str) -> None:
        """Forget a journal whose file is gone."""
        with self._lock, self._connection as database:
            database.execute("DELETE FROM journals WHERE name = ?", (journal,))

    def take_over_journals(self, now_s: float) -> int:
        """Add the entries that killed servers have left in their journals; return them."""
        count = 0
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                count += self._take_over(path, now_s)
            except OSError as error:
                log.warning("cannot read the usage in '%s': %s; it stays there", path, error)
        return count

    def _take_over(self, path: Path, now_s: float) -> int:
        with take_over(path) as content:
            if content is None:
                return 0
            known = self._connection.execute(
                "SELECT bytes FROM journals WHERE name = ? AND typeof(bytes) = 'integer'",
                (path.name,),
            ).fetchone()
            new = content[max(0, known[0]) if known else 0 :].split(b"\n")
            entries, unreadable = journal.read_lines(new, decode_entry)
            if unreadable:
                journal.put_aside(path, unreadable, self.folder / QUARANTINE_NAME)
            self.fold(path.name, len(content), entries, now_s)
        self.forget_journal(path.name)
        return len(entries)

    def list_rows(
        self,
        by: Sequence[str],
        since: str = "",
        until: str = "",
        key: str | None = None,
        user: str = "",
    ) -> list[UsageRow]:
        """Return sums by the columns in `by`, from the day `since` to `until`; of one key, user.

        The columns are those of `COLUMNS`; a day is written `2026-11-23`.
        """
        names = [name for name in COLUMNS if name in by]
        counts = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens")
        groups = ", ".join(f'"{name}"' for name in names) or "NULL"
        # a sum may be beyond 64 bits, for which SUM has an error
        unpriced = "requests - priced_requests"
        totals = [f"CAST(TOTAL({name}) AS INTEGER)" for name in (*counts, unpriced)]
        query = (
            f"SELECT {groups}, {', '.join(totals)}, ROUND(TOTAL(duration_us) / 1e6, 6), "
            f"SUM(spend / {_PART}), SUM(spend % {_PART}) FROM usage "
            "WHERE day >= ?1 AND (?2 = '' OR day <= ?2) AND (?3 IS NULL OR key = ?3) "
            "AND (?4 = '' OR user = ?4) "
            f"GROUP BY {groups} ORDER BY {groups}"
        )
        with self._lock:
            found = self._connection.execute(query, (since, until, key, user)).fetchall()
        fields, rows = [*names, *counts, "unpriced", "seconds"], []
        for *values, high, low in found:
            sums = dict(zip(fields, values[-len(fields) :], strict=True))
            spend = (high * _PART + low) / UNIT if sums["unpriced"] < sums["requests"] else None
            rows.append(UsageRow(**sums, spend=spend))
        return rows

    def read_recent(self, now_s: float) -> dict[str, UsedBefore]:
        """Return the amounts that limits still count, by the identities of keys.

        A clock that was ahead has left times in the future; they are taken as now, for good.
        """
        found: defaultdict[str, UsedBefore] = defaultdict(UsedBefore)
        with self._lock, self._connection as database:
            database.execute("DELETE FROM recent WHERE until_s <= ?", (now_s,))
            database.execute(
                "UPDATE recent SET until_s = until_s - time_s + ?1, time_s = ?1 WHERE time_s > ?1",
                (now_s,),
            )
            database.execute(
                "DELETE FROM tokens WHERE day NOT IN "
                "(SELECT DISTINCT day FROM tokens ORDER BY day DESC LIMIT ?)",
                (KEPT_DAYS,),
            )
            for row in database.execute("SELECT key, day, tokens, spend FROM tokens"):
                with suppress(ValidationError):  # SQLite keeps any type in any column
                    key, day, tokens, spend = convert(row, tuple[str, Day, Number, Number])
                    found[key].tokens[day], found[key].spend[day] = tokens, spend
            for row in database.execute("SELECT key, time_s, tokens FROM recent"):
                with suppress(ValidationError):
                    key, time_s, tokens = convert(row, tuple[str, Time, Number])
                    found[key].recent.append((time_s, tokens))
        return found


_PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT,
    }
)  # fmt: skip


FAILURES = (OSError, sqlite3.Error, UnicodeError)
"""What the methods of a store raise; the last for text in a database that is none."""


def is_damage(error: Exception) -> bool:
    """Return whether an error is one of the database itself, which will not pass."""
    if isinstance(error, OSError | sqlite3.ProgrammingError):
        return False
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _PASSING


def find_inode(folder: Path) -> int:
    """Return the identity of the database file; 0 if there is none."""
    try:
        return (folder / FILE_NAME).lstat().st_ino
    except OSError:
        return 0


def list_files(path: Path) -> list[Path]:
    """Return the files that SQLite makes of a database; the database itself is the last."""
    return [path.with_name(f"{path.name}{end}") for end in ("-shm", "-wal", "")]


def put_aside(folder: Path, inode: int, reason: Exception) -> None:
    """Rename a database that cannot be used, unless another server has just done so."""
    path = folder / FILE_NAME
    with private.lock_folder(folder):
        if find_inode(folder) != inode:
            return
        kept = path.with_name(f"{path.name}{ASIDE}{datetime.now(UTC):%Y-%m-%dT%H%M%S.%fZ}")
        for old, new in zip(list_files(path), list_files(kept), strict=True):
            with suppress(FileNotFoundError):
                old.rename(new)
    log.warning(
        "cannot use the database of usage '%s': %s; it is now '%s', and a new one begins there",
        *(path, reason, kept),
    )
