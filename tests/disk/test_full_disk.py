"""A disk that fills up, and has room again: every line is whole or not there, nothing is lost."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

from tests.accounts.usage.test_usage import count, served
from tests.disk.conftest import SmallDisk
from tests.loops import in_loop
from tests.observe.captures.samples import make_capture
from tests.routes.test_batch_runner import ALL, Site, run
from tests.routes.test_response_store import name, record
from tests.scheduler.test_slot_store import Site as Conversations
from vllama.accounts.keys.store import add_key, change_keys, read_keys
from vllama.accounts.usage.recorder import UsageRecorder
from vllama.base import journal, private
from vllama.base.errors import ConfigError
from vllama.cli.server_log import LogFile
from vllama.observe.captures.folder import CaptureFolder, list_summaries
from vllama.routes.response_store import ResponseStore

PAGE = 4096


def append(path: Path, line: bytes) -> None:
    journal.append_to(path, line)


def log(path: Path, line: bytes) -> None:
    LogFile(path).write(line.decode())


@pytest.mark.parametrize("write", [append, log])
@pytest.mark.parametrize("left", range(3))
def test_lines_are_whole_or_not_there(disk: SmallDisk, write, left: int) -> None:
    path, lines = disk.place / "lines", [b"%d " % n + b"x" * 3000 + b"\n" for n in range(9)]
    for number, line in enumerate(lines):
        if number == 2:
            disk.fill(left * PAGE)
        elif number == 6:
            disk.empty()
        with suppress(OSError):
            write(path, line)
    kept = path.read_bytes().splitlines(keepends=True)
    assert set(kept) < set(lines) and kept[-3:] == lines[-3:] and kept[:2] == lines[:2]


@pytest.mark.parametrize("fills_at", range(8))
def test_a_batch_loses_no_row(disk: SmallDisk, fills_at: int) -> None:
    """Its disk has room for a part of a row's line, and all of it for the next row."""
    site, asked = Site(disk.place / "batches"), 0

    async def answer(prompt: str) -> None:
        nonlocal asked
        if asked == fills_at:
            disk.fill()
        elif asked == fills_at + 1:
            disk.empty()
        asked += 1

    for _ in range(3):  # as the server does each minute, after an error of the disk
        asyncio.run(run(site.make_server(answer, "m"), site.batch))
        disk.empty()
    shown = site.find()
    assert (shown.status, shown.request_counts.completed) == ("completed", 8)
    assert site.read(shown.output_file_id) == ALL
    site.store.close()


@pytest.mark.parametrize("spoilt", [b"{", b'{"custom_id": 1}\n', b"\xff\n", b"[" * 5000 + b"\n"])
def test_a_line_of_a_batch_that_cannot_be_read_costs_itself(tmp_path, caplog, spoilt) -> None:
    site = Site(tmp_path)
    asyncio.run(run(site.make_server(lambda _: asyncio.sleep(0), "m"), site.batch))
    output = site.store.content(site.find().output_file_id)
    lines = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(
        b"".join(lines[:3]) + spoilt + b"".join(lines[4:] if spoilt[-1:] == b"\n" else [])
    )
    site.batch.shown.status = "in_progress"  # as a server leaves it that is killed then
    asyncio.run(run(site.make_server(lambda _: asyncio.sleep(0), "m"), site.batch))
    shown = site.find()
    assert (shown.status, shown.request_counts.completed) == ("completed", 8)
    assert site.read(shown.output_file_id) == ALL
    assert "cannot read 1 line of" in caplog.text
    (aside,) = tmp_path.glob("*.unreadable")
    assert aside.read_bytes() == spoilt.removesuffix(b"\n") + b"\n"
    site.store.delete_file(shown.output_file_id, "")
    assert not aside.exists()
    site.store.close()


@in_loop
async def test_usage_is_whole(disk: SmallDisk) -> None:
    recorder = UsageRecorder(disk.place / "usage")
    for number in range(40):
        if number == 10:
            disk.fill()
        elif number == 30:
            disk.empty()
        recorder.record(served("k" * 500))
        if number % 5 == 0:
            await recorder.flush()
    await recorder.flush()
    recorder.close()
    await recorder.run()
    assert count(disk.place / "usage", "k" * 500) == (40, 80)


def test_keys_are_as_before(disk: SmallDisk) -> None:
    path = disk.place / "keys.json"

    def add(each: str) -> None:
        change_keys(path, lambda keys: add_key(keys, each, "secret", {}, 0.0))

    add("a")
    disk.fill()
    before = set(disk.place.iterdir())
    for number in range(40):  # its page has some room
        with pytest.raises(ConfigError, match="No space left on device"):
            add(f"b{number}" + "x" * 50)
    assert [key.name for key in read_keys(path)] == ["a"]
    assert set(disk.place.iterdir()) == before
    disk.empty()
    add("c")
    assert [key.name for key in read_keys(path)] == ["a", "c"]


def test_captures_go_on(disk: SmallDisk) -> None:
    folder = CaptureFolder(disk.place / "captures")
    folder.write(make_capture(1))
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        folder.write(make_capture(2))
    assert len(list(folder.path.iterdir())) == 1
    disk.empty()
    folder.write(make_capture(3))
    assert [one.id for one in list_summaries(folder.path)] == ["19a-3", "19a-1"]


def test_conversations_leave_nothing_behind(disk: SmallDisk) -> None:
    site = Conversations(disk.place / "conversations", 200_000)
    first = site.save(20_000)
    assert first is not None
    name = site.store.begin(20_000, "m")
    (site.folder / name).write_bytes(bytes(20_000))
    disk.fill()
    saved = type(first)(
        name=name[4:-5], key="k", model="m", owner="", key_name="", blocks=(), tokens=9
    )
    with pytest.raises(OSError, match="No space left"):
        site.store.finish(name, saved)
    site.store.abandon(name)
    assert site.save(20_000) is None  # less than a tenth of the disk is free
    site.store.note_use(first)
    site.store.trim_blocks()
    assert [path.name for path in site.folder.glob("*.slot")] == [f"{first.name}.slot"]
    disk.empty()
    assert site.save(20_000) is not None
    site.store.close()


def test_stored_responses_leave_room_for_others(disk: SmallDisk) -> None:
    store = ResponseStore(disk.place / "responses")
    for number in range(60):
        one = record(number, text="x" * 100_000)
        store.keep(one)
        asyncio.run(store.save(one.id, ""))
    assert disk.free_bytes > 150_000
    kept = {path.name[:29] for path in (disk.place / "responses").iterdir()}
    assert len(kept) > 10 and kept == {name(number) for number in range(60 - len(kept), 60)}
    disk.fill()
    one = record(60, text="x" * 100_000)
    store.keep(one)
    asyncio.run(store.save(one.id, ""))  # the oldest make room
    assert name(60) in {path.name[:29] for path in (disk.place / "responses").iterdir()}


def test_a_file_is_replaced_or_as_it_was(disk: SmallDisk) -> None:
    path = disk.place / "file"
    private.replace(path, b"old")
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        private.replace(path, b"new" * 10_000)
    assert path.read_bytes() == b"old" and len([*disk.place.iterdir()]) == 2


@pytest.mark.parametrize("size", range(0, 200, 7))
def test_a_crash_leaves_a_stump_that_spoils_nothing(tmp_path: Path, size: int) -> None:
    path = tmp_path / "lines"
    line = json.dumps({"custom_id": "x" * 180}).encode() + b"\n"
    path.write_bytes(line + line[:size])
    journal.append_to(path, line)
    with path.open("rb") as file:
        found, bad = journal.read_lines(file, lambda each: json.loads(each)["custom_id"])
    assert len(found) == 2 and bad == ([line[:size]] if size else [])
