"""Uploads, files and batches stay within their bounds; folders that vanish are made again."""

from __future__ import annotations

import logging
import select
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.disk.conftest import SmallDisk
from tests.observe.captures.samples import make_capture
from tests.routes.test_batch_runner import GB, Site
from tests.scheduler.test_slot_store import TEXT
from tests.scheduler.test_slot_store import Site as Conversations
from tests.server_process import LIMIT_S, Server
from vllama.base.errors import LimitReached
from vllama.observe.captures.folder import CaptureFolder, list_summaries
from vllama.routes.batches import store as store_module
from vllama.routes.batches.store import BatchStore, NoRoom, StoredBatch, make_id
from vllama.scheduler.slot_cache.store import hash_blocks


def make_store(folder: Path, most_bytes: int = GB) -> BatchStore:
    store = BatchStore(folder, most_bytes)
    assert store.open()
    return store


def test_uploads_that_have_not_ended_count(tmp_path: Path) -> None:
    store = make_store(tmp_path, 1000)
    first, second = store.begin_file(), store.begin_file()
    store.reserve(first, "a", 150)
    store.reserve(first, "a", 200)  # it has grown
    with pytest.raises(NoRoom, match="the storage limit is reached"):
        store.reserve(second, "a", 51)
    store.reserve(second, "b", 250)
    for number in range(2):
        store.reserve(store.begin_file(), f"c{number}", 250)
    with pytest.raises(NoRoom, match="the storage limit is reached"):
        store.check_room("d", 51)
    store.release(first)
    store.check_room("d", 200)
    store.close()


def test_a_disk_has_room_for_all_uploads_together(disk: SmallDisk) -> None:
    store = make_store(disk.place / "batches")
    store.reserve(store.begin_file(), "a", 1_000_000)
    with pytest.raises(NoRoom, match="the disk is full"):
        store.reserve(store.begin_file(), "a", 1_000_000)
    store.reserve(store.begin_file(), "a", 500_000)
    store.close()


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(store_module, "MOST_FILES", 5)
    store = make_store(tmp_path)
    for number in range(10):
        try:
            new = store.begin_file()
            store.reserve(new, "a", 1)
        except NoRoom:
            assert number >= 5
            continue
        new.write_bytes(b"x")
        store.keep_file(new, "name", "a")
        store.release(new)
    assert len(store.list_files("a")) == 5
    store.check_room("b", 1)
    store.close()


def test_the_number_of_batches_is_bounded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(store_module, "MOST_BATCHES", 4)
    monkeypatch.setattr(store_module, "MOST_RUNNING", 3)
    site = Site(tmp_path)
    site.store.finish(site.batch, "failed", [])
    known = site.batch.shown
    for number in range(6):
        fields = {each: getattr(known, each) for each in ("endpoint", "input_file_id")}
        shown = type(known)(
            **fields, id=make_id("batch_"), completion_window="24h", created_at=int(time.time()),
            expires_at=known.expires_at, metadata=None,
        )  # fmt: skip
        batch = StoredBatch("", "", shown)
        site.store.add_batch(batch)
        site.store.output(shown.id, "output").write_text("{}\n")
        if number < 3:
            site.store.finish(batch, "failed", [])
    assert len(site.store.list_batches()) == 4
    assert len(site.store.list_files("")) == 2  # the input, and the answers of the one that ended
    with pytest.raises(LimitReached, match="3 batches are still running"):
        site.store.add_batch(StoredBatch("", "", shown))
    site.store.add_batch(StoredBatch("another key", "", type(known)(**fields, id=make_id("batch_"),
        completion_window="24h", created_at=0, expires_at=1, metadata=None)))  # fmt: skip
    site.store.close()


def test_a_folder_of_batches_that_vanishes(tmp_path: Path, caplog) -> None:
    site = Site(tmp_path / "batches")
    shutil.rmtree(tmp_path / "batches")
    for _ in range(3):
        site.store.check_open()
        assert site.store.list_batches() == [] == site.store.list_files("")
    new = site.store.begin_file()
    new.write_bytes(b"x")
    assert site.store.keep_file(new, "name", "").bytes == 1
    assert not BatchStore(tmp_path / "batches", GB).open()  # it is this server's
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    site.store.close()


def test_a_folder_of_conversations_that_vanishes(tmp_path: Path, caplog) -> None:
    site = Conversations(tmp_path / "c")
    assert site.save(10, TEXT)
    shutil.rmtree(tmp_path / "c")
    for _ in range(3):
        site.store.trim_blocks()
    assert site.store.find("k", "", hash_blocks(TEXT)) is None and site.store.size_bytes == 0
    shutil.rmtree(tmp_path / "c")
    assert site.save(10, TEXT) and site.store.find("k", "", hash_blocks(TEXT))
    assert [each.levelno for each in caplog.records] == [logging.WARNING] * 2  # it went twice
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700
    site.store.close()


def test_a_folder_of_conversations_that_cannot_be_made_again(tmp_path: Path, caplog) -> None:
    (tmp_path / "above").mkdir()
    site = Conversations(tmp_path / "above" / "c")
    shutil.rmtree(tmp_path / "above")
    (tmp_path / "above").write_text("a file")
    for _ in range(3):
        for act in (site.store.trim_blocks, lambda: site.store.begin(10, "m")):
            with pytest.raises(OSError, match=r"Not a directory|File exists"):
                act()
    assert len({each.getMessage() for each in caplog.records}) <= 1


def test_a_folder_of_captures_that_vanishes(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path / "captures", most=2)
    folder.write(make_capture(1))
    shutil.rmtree(folder.path)
    for number in (2, 3, 4):
        folder.write(make_capture(number))
    assert [one.id for one in list_summaries(folder.path)] == ["19a-4", "19a-3"]


@pytest.mark.slow
@pytest.mark.parametrize("announced", [True, False])
def test_uploads_without_an_end_stay_within_the_bound(tmp_path: Path, announced: bool) -> None:
    """Of a real server: 12 clients each send a megabyte, of which 4 have room."""
    size = 1_000_000
    head = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\n"
    head += b"content-type: multipart/form-data; boundary=b\r\n"
    part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + bytes(size)
    if announced:
        head += b"content-length: %d\r\n\r\n" % (len(part) + 100)
        whole = head + part
    else:
        whole = head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(part), part)
    with Server(tmp_path / "home", env={"VLLAMA_BATCH_FILES": str(4_500_000)}) as server:
        clients = []
        for _ in range(12):
            client = socket.create_connection(("127.0.0.1", server.port))
            client.settimeout(LIMIT_S)
            clients.append(client)
            client.sendall(whole)
        folder = server.home / "data" / "batches"

        def measure() -> int:
            sizes = []
            for path in folder.glob("new-*"):
                with suppress(FileNotFoundError):  # it was refused
                    sizes.append(path.stat().st_size)
            return sum(sizes)

        deadline_s = time.monotonic() + LIMIT_S
        while measure() < size * len(clients):  # the others are refused
            assert time.monotonic() < deadline_s and measure() <= 4_500_000
            for client in select.select(clients, [], [], 0.05)[0]:
                assert client.recv(100).startswith(b"HTTP/1.1 413")
                client.close()
                clients.remove(client)
        assert len(clients) == 4 if announced else len(clients) <= 4
        for client in clients:
            client.close()
        while measure():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
