"""Usage is counted exactly once, whatever ends the server, and whenever."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from tests.loops import in_loop
from vllama.accounts.usage import recorder as recorder_module
from vllama.accounts.usage.entries import (
    SUFFIX,
    Admitted,
    Amounts,
    Journal,
    Served,
    UsedBefore,
    decode_entry,
    encode_entry,
)
from vllama.accounts.usage.money import UNIT
from vllama.accounts.usage.recorder import UsageRecorder
from vllama.accounts.usage.store import FILE_NAME, UsageStore
from vllama.base.journal import read_lines

DAY = "2026-11-23"


def served(key: str = "ann", *, model: str = "m", day: str = DAY, tokens: int = 2) -> Served:
    amounts = Amounts(
        requests=1,
        prompt_tokens=10,
        cached_tokens=4,
        generated_tokens=tokens,
        duration_us=1_500_000,
    )
    return Served(day, key, model, amounts)


def count(folder: Path, key: str = "ann") -> tuple[int, int]:
    """Return requests and generated tokens of a key, as the next server would find them."""
    with closing(UsageStore(folder)) as store:
        store.take_over_journals(0.0)
        rows = [row for row in store.list_rows(["key"]) if row.key == key]
    return (rows[0].requests, rows[0].generated_tokens) if rows else (0, 0)


def list_tokens(store: UsageStore) -> dict[str, dict[str, int]]:
    """Return the tokens of each day by the identities of keys."""
    return {identity: used.tokens for identity, used in store.read_recent(0.0).items()}


def list_journals(folder: Path) -> list[Path]:
    return list(folder.glob(f"*{SUFFIX}"))


@asynccontextmanager
async def recording(folder: Path, restore=lambda found: None) -> AsyncIterator[UsageRecorder]:
    """Be a server that records usage, and ends well."""
    recorder = UsageRecorder(folder, restore)
    yield recorder
    recorder.close()
    await recorder.run()


@in_loop
async def record(folder: Path, *entries) -> None:
    """Record entries in a server that ends well."""
    async with recording(folder) as recorder:
        for entry in entries:
            recorder.record(entry)


def test_sums_by_each_column(tmp_path: Path) -> None:
    entries = [served(), served(tokens=3), served("bob", day="2026-11-24"), served("", model="n")]
    record(tmp_path, *entries)
    store = UsageStore(tmp_path)
    assert [(row.key, row.requests, row.generated_tokens) for row in store.list_rows(["key"])] == [
        *(("", 1, 2), ("ann", 2, 5), ("bob", 1, 2)),
    ]
    row = store.list_rows(["day", "key", "model"], since=DAY, until=DAY, key="ann")[0]
    assert (row.day, row.model, row.prompt_tokens, row.cached_tokens) == (DAY, "m", 20, 8)
    assert row.seconds == 3.0
    assert [row.requests for row in store.list_rows([])] == [4]
    assert store.list_rows([], since="2027-01-01") == []
    assert store.list_rows(["key"], key="nobody") == []
    store.close()


def test_sums_of_the_users_of_a_key(tmp_path: Path) -> None:
    amounts = Amounts(requests=1, generated_tokens=4)
    users = ("ann@example.org", "bob@example.org", "ann@example.org", "")
    record(tmp_path, *(Served(DAY, "web", "m", amounts, "web", "team", user) for user in users))
    with closing(UsageStore(tmp_path)) as store:
        rows = [(row.user, row.requests) for row in store.list_rows(["user"])]
        assert rows == [("", 1), ("ann@example.org", 2), ("bob@example.org", 1)]
        (own,) = store.list_rows(["user"], key="web", user="bob@example.org")
        assert (own.user, own.requests) == ("bob@example.org", 1)
        assert list_tokens(store)["web"] == {DAY: 16}, "a key's limits are for all its users"


def test_limits_count_by_what_no_other_key_has(tmp_path: Path) -> None:
    amounts = Amounts(requests=1, prompt_tokens=3, generated_tokens=4)
    record(
        tmp_path,
        Served(DAY, "ann", "m", amounts, "first"),
        Served(DAY, "ann", "n", amounts, "first"),
        Served(DAY, "ann", "m", amounts, "second"),
        Served(DAY, "", "m", amounts),
    )
    store = UsageStore(tmp_path)
    assert list_tokens(store) == {
        "first": {DAY: 14},
        "model m of first": {DAY: 7},
        "model n of first": {DAY: 7},
        "second": {DAY: 7},
        "model m of second": {DAY: 7},
    }
    assert {row.key: row.requests for row in store.list_rows(["key"])} == {"ann": 3, "": 1}
    store.close()
    record(tmp_path, Served("2026-11-24", "ann", "m", amounts, "second"))
    store = UsageStore(tmp_path)
    assert list_tokens(store)["second"] == {DAY: 7, "2026-11-24": 7}
    store.close()


def test_a_server_that_ends_leaves_only_the_private_database(tmp_path: Path) -> None:
    folder = tmp_path / "usage"
    record(folder, served())
    assert not list(folder.glob(f"*{SUFFIX}"))
    for file in (folder, *folder.iterdir()):
        assert not stat.S_IMODE(file.stat().st_mode) & 0o077, file


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from vllama.accounts.usage.entries import Amounts, Served
from vllama.accounts.usage.recorder import UsageRecorder

async def live():
    recorder = UsageRecorder(Path(sys.argv[1]))
    flushes = int(sys.argv[2])
    for number in range(300):
        amounts = Amounts(requests=1, generated_tokens=2, priced_requests=1, spend=1_234_567)
        recorder.record(Served("2026-11-23", "ann", "m", amounts, "owner", "team"))
        if flushes and number % flushes == 0:
            await recorder.flush()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(live())
"""


@pytest.mark.parametrize("flushes", [0, 1, 7])
def test_nothing_is_lost_or_counted_twice_by_a_kill(flushes: int, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(flushes)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert count(tmp_path) == (300, 600)
    assert count(tmp_path) == (300, 600)
    assert not list(tmp_path.glob(f"*{SUFFIX}"))
    with closing(UsageStore(tmp_path)) as store:
        assert [row.spend for row in store.list_rows(["group"])] == [300 * 1_234_567 / UNIT]
        spend = {identity: used.spend for identity, used in store.read_recent(0.0).items()}
    owners = ("owner", "group team", "model m of owner", "model m of group team")
    assert spend == {owner: {DAY: 300 * 1_234_567} for owner in owners}


def test_spend_is_exact_beyond_64_bits_and_says_what_has_no_price(tmp_path: Path) -> None:
    most = 1 << 62
    priced = Amounts(requests=1, priced_requests=1, spend=most)
    days = [f"2026-11-{number:02}" for number in range(1, 9)]
    record(
        tmp_path,
        *(Served(day, "ann", "m", priced, group="team") for day in days),
        Served(DAY, "ann", "free", Amounts(requests=2), group="team"),
        Served(DAY, "bob", "free", Amounts(requests=3)),
    )
    with closing(UsageStore(tmp_path)) as store:
        rows = [(row.group, row.spend, row.unpriced) for row in store.list_rows(["group"])]
    assert rows == [("", None, 3), ("team", 8 * most / UNIT, 2)]


def test_lines_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    old = b'["served","2026-11-23","ann","m",{"requests":1,"generated_tokens":2},"owner"]\n'
    (tmp_path / f"1{SUFFIX}").write_bytes(old)
    assert count(tmp_path) == (1, 2)


def test_a_kill_while_a_journal_is_taken_over(tmp_path: Path) -> None:
    """The database has it already, but its file is still there."""
    journal = Journal(tmp_path / f"1{SUFFIX}")
    lines = [encode_entry(served()) for _ in range(3)]
    for line in lines:
        journal.append(line)
    os.close(journal._fd)  # as when the process ends
    store = UsageStore(tmp_path)
    store.fold(f"1{SUFFIX}", sum(map(len, lines[:2])), [*map(decode_entry, lines[:2])], 0.0)
    store.close()
    assert count(tmp_path) == (3, 6)


@in_loop
async def test_the_journal_of_a_running_server_is_left_alone(tmp_path: Path) -> None:
    async with recording(tmp_path) as recorder:
        recorder.record(served())
        assert count(tmp_path) == (0, 0)
        await recorder.flush()
        assert count(tmp_path) == (1, 2)
        recorder.record(served())
    assert count(tmp_path) == (2, 4)


@in_loop
async def test_a_long_journal_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MAX_JOURNAL_BYTES", 100)
    async with recording(tmp_path) as recorder:
        for _ in range(20):
            recorder.record(served())
            recorder.record(served())
            await recorder.flush()
            assert len(list_journals(tmp_path)) == 1
    assert count(tmp_path) == (40, 80)


@in_loop
async def test_a_database_that_fails_gets_everything_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program holds the database; then it lets go."""
    caplog.set_level(logging.WARNING)
    async with recording(tmp_path) as recorder:
        recorder._store._connection.execute("PRAGMA busy_timeout = 1")
        with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for _ in range(3):
                recorder.record(served())
                await recorder.flush()
            other.execute("ROLLBACK")
        recorder.record(served())
    assert count(tmp_path) == (4, 8)
    assert caplog.text.count("cannot keep usage") == 1


@in_loop
async def test_a_full_disk_loses_nothing_while_the_server_lives(tmp_path: Path) -> None:
    class Full(Journal):
        def append(self, line: bytes) -> None:
            raise OSError(28, "No space left on device")

    async with recording(tmp_path) as recorder:
        recorder._journal.append(b"")
        recorder._journal.__class__ = Full
        recorder.record(served())
        recorder._journal.__class__ = Journal
        recorder.record(served())
    assert count(tmp_path) == (2, 4)


def test_a_line_that_was_cut_spoils_no_other() -> None:
    line = encode_entry(served())
    content = line + line[:20] + b"\n" + line + line[:30]
    entries, unreadable = read_lines(content.splitlines(keepends=True), decode_entry)
    assert len(entries) == 2 and unreadable == [line[:20], line[:30]]


def test_admissions_outlive_a_restart_as_long_as_they_count(tmp_path: Path) -> None:
    now_s = time.time()
    record(
        tmp_path,
        Admitted("ann", 1.0, 61.0),
        Admitted("bob", now_s - 2, now_s + 58),
        Admitted("bob", now_s - 1, now_s + 59),
        Admitted("bob", now_s - 1, now_s + 59, 7),
    )
    store = UsageStore(tmp_path)
    recent = [(now_s - 2, 0), (now_s - 1, 0), (now_s - 1, 7)]
    assert store.read_recent(now_s) == {"bob": UsedBefore(recent=recent)}
    assert store.read_recent(now_s + 70) == {}
    store.close()


def test_several_servers_of_one_folder(tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=record, args=(tmp_path, *(served(tokens=1),) * 50))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(tmp_path) == (200, 200)


def test_a_new_database_is_opened_while_another_server_writes(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    writes_on = threading.Timer(0.3, other.commit)
    writes_on.start()
    UsageStore(tmp_path).close()
    writes_on.join()
    other.close()
