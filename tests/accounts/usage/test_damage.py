"""Whatever has become of the files of usage: the server starts, counts, and says what it did."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from tests.accounts.usage.test_usage import DAY, count, list_journals, record, recording, served
from tests.loops import in_loop
from vllama.accounts.keys.limits import KeyLimits
from vllama.accounts.usage import recorder as recorder_module
from vllama.accounts.usage import store as store_module
from vllama.accounts.usage.entries import SUFFIX, Admitted, Amounts, UsedBefore, encode_entry
from vllama.accounts.usage.money import UNIT
from vllama.accounts.usage.recorder import UsageRecorder
from vllama.accounts.usage.store import FILE_NAME, QUARANTINE_NAME, UsageStore
from vllama.base.clock import RealClock

ROWS = 400


@cache
def make_files() -> dict[str, bytes]:
    """Return the files of a database of many pages."""
    now_s = time.time()
    rows = [
        served(f"key-{number:03}", day=f"2026-11-{number % 28 + 1:02}") for number in range(ROWS)
    ]
    tokens = [Admitted(f"key-{number}", now_s, now_s + 9e4) for number in range(ROWS)]
    with tempfile.TemporaryDirectory() as name:
        record(folder := Path(name), *rows, *tokens)
        return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def fill(folder: Path) -> Path:
    """Put a database of many pages into a folder; return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in make_files().items():
        (folder / name).write_bytes(content)
    return folder / FILE_NAME


@in_loop
async def live(folder: Path) -> None:
    """Be a server that answers one request of Ann's."""
    async with recording(folder, KeyLimits(RealClock()).restore) as recorder:
        recorder.record(served())
        await recorder.flush()
        assert not recorder.failure
        recorder.read(lambda store: store.list_rows(["day", "key", "model"]))


def list_aside(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{FILE_NAME}.damaged-*Z"))


def put_bytes(file: Path, offset: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(content)


@pytest.mark.parametrize("seed", range(48))
def test_a_server_starts_with_any_bytes_in_its_database(seed: int, tmp_path: Path) -> None:
    chance, file = random.Random(seed), fill(tmp_path)
    size = file.stat().st_size
    match seed % 4:
        case 0:  # a page
            put_bytes(file, 4096 * chance.randrange(size // 4096), chance.randbytes(4096))
        case 1:  # a byte of the header
            put_bytes(file, chance.randrange(100), chance.randbytes(1))
        case 2:  # a few bytes anywhere
            for _ in range(20):
                put_bytes(file, chance.randrange(size), chance.randbytes(8))
        case 3:  # its end is missing
            file.write_bytes(file.read_bytes()[: chance.randrange(size)])
    live(tmp_path)
    live(tmp_path)
    assert count(tmp_path)[0] >= 2


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "mine").write_text("x")


def make_folder_beside(end: str) -> Callable[[Path], None]:
    return lambda file: file.with_name(f"{file.name}{end}").mkdir()


def execute(statement: str, *, anew: bool = False) -> Callable[[Path], None]:
    """Return what changes a database, or makes another one in its place."""

    def change(file: Path) -> None:
        if anew:
            file.unlink()
        with closing(sqlite3.connect(file, isolation_level=None)) as database:
            database.execute(statement)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: put_bytes(file, 0, b"no database "),
        lambda file: put_bytes(file, 4096, b"\xa5" * 4096),
        lambda file: put_bytes(file, 4096, b"\xa5" * (file.stat().st_size - 4096)),
        make_folder,
        make_folder_beside("-wal"),
        make_folder_beside("-shm"),
        execute("PRAGMA user_version = 99"),
        execute("CREATE TABLE usage (something TEXT)", anew=True),
        execute("INSERT INTO tokens VALUES (CAST(x'ff' AS TEXT), CAST(x'fe' AS TEXT), 1, 0)"),
    ],
)
def test_what_is_no_database_is_put_aside(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = fill(tmp_path)
    damage(file)
    caplog.set_level(logging.WARNING)
    live(tmp_path)
    [kept] = list_aside(tmp_path)
    assert time.strftime("%Y-%m-%d", time.gmtime()) in kept.name
    warnings = [one.getMessage() for one in caplog.records]
    assert len(warnings) == 1 and str(file) in warnings[0] and str(kept) in warnings[0]
    assert count(tmp_path) == (1, 2), "the new one has what came after"
    live(tmp_path)
    assert list_aside(tmp_path) == [kept]


ODD = ("NULL IS NULL", "'text'", "x'fe'", "-1", "1.5", "1e300", "9223372036854775807")


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize(
    "column", [("tokens", 0), ("tokens", 2), ("tokens", 3), ("recent", 1), ("recent", 3)]
)
def test_a_value_of_any_type_costs_its_row_at_most(
    column: tuple[str, int], value: str, tmp_path: Path
) -> None:
    table, place = column
    good = {
        "tokens": ["'2026-11-01'", "'ann'", "1", "1"],
        "recent": ["'ann'", "1", "9e99", "1"],
    }[table]
    good[place] = value
    with sqlite3.connect(fill(tmp_path)) as database:
        database.execute(f"INSERT INTO {table} VALUES ({', '.join(good)})")
    live(tmp_path)
    assert count(tmp_path, "key-003") == (1, 2) and not list_aside(tmp_path)


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    live(tmp_path)
    assert count(tmp_path) == (1, 2) and not list_aside(tmp_path)


OLD = """
CREATE TABLE usage (
  day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
  generated_tokens INTEGER NOT NULL, duration_us INTEGER NOT NULL, PRIMARY KEY (day, key, model)
) WITHOUT ROWID;
CREATE TABLE journals (name TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE tokens (
  day TEXT NOT NULL, key TEXT NOT NULL, tokens INTEGER NOT NULL, PRIMARY KEY (day, key)
) WITHOUT ROWID;
INSERT INTO usage VALUES ('2026-11-23', 'old', 'm', 1, 10, 4, 2, 1500000);
INSERT INTO tokens VALUES ('2026-11-23', 'owner', 12);
"""
"""Tables of versions 1 and 2, before there were prices."""
OLD_3 = f"""
CREATE TABLE usage (
  day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, "group" TEXT NOT NULL DEFAULT '',
  {", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in Amounts.__struct_fields__)},
  PRIMARY KEY (day, key, model, "group")
) WITHOUT ROWID;
CREATE TABLE tokens (
  day TEXT NOT NULL, key TEXT NOT NULL, tokens INTEGER NOT NULL, spend INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (day, key)
) WITHOUT ROWID;
INSERT INTO usage VALUES ('2026-11-23', 'old', 'm', 'team', 1, 10, 4, 2, 1500000, 1, 7);
INSERT INTO tokens VALUES ('2026-11-23', 'owner', 12, 7);
"""
"""Tables of version 3, before there were users."""


@pytest.mark.parametrize("version", [1, 2])
def test_a_database_of_an_earlier_version_is_read_on(version: int, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        database.executescript(f"{OLD} PRAGMA user_version = {version}")
    stores = []
    with ThreadPoolExecutor(4) as pool:  # servers that start at once
        for made in [pool.submit(UsageStore, tmp_path) for _ in range(4)]:
            stores.append(made.result())
    for store in stores:
        store.close()
    live(tmp_path)
    assert count(tmp_path) == count(tmp_path, "old") == (1, 2) and not list_aside(tmp_path)
    with closing(UsageStore(tmp_path)) as store:
        [row] = [row for row in store.list_rows(["key", "group"]) if row.key == "old"]
        assert (row.seconds, row.group, row.spend, row.unpriced) == (1.5, "", None, 1)
        assert store.read_recent(0.0)["owner"] == UsedBefore(tokens={DAY: 12}, spend={DAY: 0})


def test_a_database_without_users_is_read_on(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        database.executescript(f"{OLD_3} PRAGMA user_version = 3")
    live(tmp_path)
    assert count(tmp_path) == count(tmp_path, "old") == (1, 2) and not list_aside(tmp_path)
    with closing(UsageStore(tmp_path)) as store:
        [row] = [row for row in store.list_rows(["key", "group", "user"]) if row.key == "old"]
        assert (row.group, row.user, row.spend) == ("team", "", 7 / UNIT)
        assert store.read_recent(0.0)["owner"] == UsedBefore(tokens={DAY: 12}, spend={DAY: 7})


@in_loop
async def test_damage_and_removal_under_a_running_server(tmp_path: Path) -> None:
    file = fill(tmp_path)
    async with recording(tmp_path) as recorder:
        recorder.record(served())
        await recorder.flush()
        put_bytes(file, 0, b"\xa5" * file.stat().st_size)
        for end in ("-wal", "-shm"):
            put_bytes(file.with_name(FILE_NAME + end), 0, b"\xa5" * 10_000)
        for _ in range(3):
            recorder.record(served())
            await recorder.flush()
        assert not recorder.failure and list_aside(tmp_path)
        file.unlink()
        recorder.record(served())
        await recorder.flush()
        assert not recorder.failure and count(tmp_path) == (1, 2)


RUBBISH = [
    b"\x00\xff\xfe binary \x01",
    b'["served","2026-11-23","ann","m",{"requests":1,"prompt_tokens":99999999999999999999}]',
    b'["served","2026-11-23","ann","m",{"requests":1,"generated_tokens":-5}]',
    b'["served","2026-11-23","ann","m",{"requests":1,"generated_tokens":1.5}]',
    b'["served","2026-11-23","ann","m",{"requests":"1"}]',
    b'["served","someday","ann","m",{"requests":1}]',
    b'["served","2026-11-23","a\xff","m",{"requests":1}]',
    b'["served","2026-11-23","ann',
    b'["admitted","ann",1e400,2e400]',
    b'["admitted","ann",-1,"x"]',
    b'["stolen","2026-11-23"]',
    b"[" * 100_000,
    b"null",
]


@pytest.mark.parametrize("line", RUBBISH, ids=range(len(RUBBISH)))
def test_lines_that_cannot_be_read_are_kept_apart(
    line: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = encode_entry(served())
    (tmp_path / f"1-1{SUFFIX}").write_bytes(good + line + b"\n" + good)
    (tmp_path / f"2-1{SUFFIX}").write_bytes(line)
    with caplog.at_level(logging.WARNING):
        live(tmp_path)
        live(tmp_path)
    assert count(tmp_path) == (4, 8) and not list_journals(tmp_path)
    assert (tmp_path / QUARANTINE_NAME).read_bytes() == 2 * (line + b"\n")
    assert caplog.text.count("cannot read 1 line") == 2, "one warning for each journal"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_journal_stays_where_it_is(
    make: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / f"1-1{SUFFIX}")
    (tmp_path / f"2-1{SUFFIX}").write_bytes(encode_entry(served()))
    with caplog.at_level(logging.WARNING):
        live(tmp_path)
    assert count(tmp_path)[0] == 2 and (tmp_path / f"1-1{SUFFIX}").exists()
    assert "it is no regular file" in caplog.text


def test_the_largest_numbers_can_be_added_up(tmp_path: Path) -> None:
    most = 1 << 53
    record(tmp_path, *(served(tokens=most) for _ in range(600)))
    for _ in range(3):
        record(tmp_path, *(served(tokens=1 << 62) for _ in range(5)))
    with closing(UsageStore(tmp_path)) as store:
        [row] = store.list_rows(["key"])
        assert row.requests == 615 and row.generated_tokens > most
        store.read_recent(0.0)


@in_loop
async def test_a_folder_that_cannot_be_used_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "RETRY_S", 0.05)
    folder = tmp_path / "usage"
    fill(folder)
    folder.rename(tmp_path / "before")
    folder.write_text("in the way")
    found = []

    caplog.set_level(logging.WARNING)
    recorder = UsageRecorder(folder, found.append)
    running = asyncio.ensure_future(recorder.run())
    for _ in range(5000):
        recorder.record(served())
    await asyncio.sleep(0.2)
    assert recorder.failure and not found
    assert sum(len(batch.entries) for batch in recorder._batches) <= 1, "memory has a bound"
    folder.unlink()
    (tmp_path / "before").rename(folder)
    async with asyncio.timeout(60):
        while recorder.failure:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    recorder.close()
    await running
    assert count(folder) == (5000, 10_000)
    assert caplog.text.count("cannot keep usage") == 1 and "again" in caplog.text
    assert len(found) == 1 and len(found[0]) >= ROWS, "limits know what was used before"


@in_loop
async def test_a_database_that_another_program_holds_delays_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BUSY_S", 0.05)
    file = fill(tmp_path)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("DELETE FROM journals")
    async with recording(tmp_path) as recorder:
        assert "locked" in recorder.failure
        recorder.record(served())
        await recorder.flush()
        assert recorder.failure and not list_aside(tmp_path)
        other.execute("COMMIT")
        other.close()
        await recorder.flush()
        assert not recorder.failure
    assert count(tmp_path) == (1, 2) and count(tmp_path, "key-003") == (1, 2)


def test_times_in_the_future_count_as_now_once(tmp_path: Path) -> None:
    now_s, ahead_s = time.time(), 400 * 86_400.0
    record(tmp_path, Admitted("ann", now_s + ahead_s, now_s + ahead_s + 60))
    store = UsageStore(tmp_path)
    assert store.read_recent(now_s)["ann"].recent == [(now_s, 0)]
    assert store.read_recent(now_s + 59)["ann"].recent == [(now_s, 0)], "not anew with each start"
    assert store.read_recent(now_s + 61) == {}
    store.close()
