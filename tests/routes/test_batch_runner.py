"""The rows of batches: which answer is whose; and whose a folder is."""

from __future__ import annotations

import asyncio
import copy
import json
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loops import in_loop
from vllama.base.clock import RealClock
from vllama.base.errors import Busy, EngineCrashed, LimitReached, ModelNotFound, NotFound
from vllama.dialects.openai.batch_types import Batch
from vllama.net.http.request import Request
from vllama.plan.types import Need
from vllama.routes.batches import runner
from vllama.routes.batches.lane import Lane
from vllama.routes.batches.rows import add_lines, read_ended, write_line
from vllama.routes.batches.runner import Batches
from vllama.routes.batches.store import BatchStore, Conflict, NoRoom, StoredBatch
from vllama.routes.recording.running import RunningRequest, Wanted
from vllama.routes.route_table import ROUTES
from vllama.scheduler.scheduler import Scheduler

GB = 10**9


class Site:
    """A store with a batch of eight rows, and a server for it."""

    def __init__(self, folder) -> None:
        self.store = BatchStore(folder, GB)
        assert self.store.open()
        rows = (
            {"custom_id": f"row-{n}", "method": "POST", "url": "/v1/completions",
             "body": {"model": "m", "prompt": f"prompt-{n}"}}
            for n in range(8)
        )  # fmt: skip
        new = self.store.begin_file()
        new.write_text("".join(json.dumps(row) + "\n" for row in rows))
        file = self.store.keep_file(new, "rows.jsonl", "")
        now_s = int(time.time())
        self.batch = StoredBatch("", "", Batch(
            id="batch_" + "0" * 24, endpoint="/v1/completions", input_file_id=file.id,
            completion_window="24h", created_at=now_s, expires_at=now_s + 1000, metadata=None,
        ))  # fmt: skip
        self.store.save_batch(self.batch)

    def make_server(self, answer, *models: str) -> Batches:
        async def find(name: str, *, trusted: bool):
            if name not in models:
                raise ModelNotFound(name)
            return SimpleNamespace(bundle=None)

        async def reply(request, key) -> None:
            prompt = json.loads(await request.body())["prompt"]
            failure = await answer(prompt)
            if failure is None:
                request.json(200, {"of": prompt})
                return
            request.failure = failure
            request.json(failure.status, {})

        return Batches(self.store, SimpleNamespace(
            answer=reply,
            keys=SimpleNamespace(find_owner=lambda *_: None, is_required=False),
            catalog=SimpleNamespace(find=find),
            lane=SimpleNamespace(may_start=lambda *_: True),
        ))  # fmt: skip

    def open_again(self) -> None:
        """Read the folder as a server does that starts."""
        self.store.close()
        assert self.store.open()

    def find(self) -> Batch:
        return self.store.find_batch(self.batch.shown.id, "").shown

    def read(self, file_id) -> dict[str, str]:
        lines = self.store.content(file_id).read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert len({line["custom_id"] for line in found}) == len(found)
        return {line["custom_id"]: line["response"]["body"].get("of", "") for line in found}


ALL = {f"row-{n}": f"prompt-{n}" for n in range(8)}


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.store.close()


async def run(server: Batches, batch: StoredBatch) -> None:
    server.start(batch)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others)


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def at_once(_: str) -> None:
    return None


def test_each_answer_is_that_of_its_row_also_after_refusals(site, monkeypatch) -> None:
    monkeypatch.setattr(runner, "LEAST_REST_S", 0.05)
    refused, died = {"prompt-2", "prompt-5"}, {"prompt-1", "prompt-6"}

    async def answer(prompt: str):
        if prompt in refused:
            refused.remove(prompt)
            return LimitReached("too many")
        if prompt in died:
            died.remove(prompt)
            return EngineCrashed("it has ended")
        await asyncio.sleep(0.01)
        return None

    asyncio.run(run(site.make_server(answer, "m"), site.batch))
    assert not refused and not died
    shown = site.find()
    assert (shown.status, shown.error_file_id) == ("completed", None)
    assert site.read(shown.output_file_id) == ALL


def test_a_row_whose_engine_dies_each_time_runs_alone_and_ends(site) -> None:
    at_once_now: list[str] = []
    beside: list[int] = []

    async def answer(prompt: str):
        at_once_now.append(prompt)
        if prompt == "prompt-3":
            beside.append(len(at_once_now) - 1)
        await asyncio.sleep(0.02)
        at_once_now.remove(prompt)
        return EngineCrashed("it has ended") if prompt == "prompt-3" else None

    asyncio.run(run(site.make_server(answer, "m"), site.batch))
    shown = site.find()
    assert beside[1:] == [0, 0]
    assert list(site.read(shown.error_file_id)) == ["row-3"]
    assert site.read(shown.output_file_id).keys() == ALL.keys() - {"row-3"}


@in_loop
async def test_a_batch_that_has_ended_is_not_cancelled(site) -> None:
    server = site.make_server(at_once, "m")
    await run(server, site.batch)
    with pytest.raises(Conflict, match="it has already finished"):
        await server.cancel(site.batch.shown.id, "")
    assert site.find().status == "completed" and site.read(site.find().output_file_id) == ALL


def test_what_a_batch_reads_does_not_expire(site) -> None:
    path = site.store.content(site.batch.shown.input_file_id)
    record = path.with_suffix(".json")
    told = json.loads(record.read_bytes())
    told["shown"]["expires_at"] = 1
    record.write_text(json.dumps(told))
    site.open_again()
    site.store.expire()
    assert path.exists()
    (batch,) = site.store.list_batches()
    asyncio.run(run(site.make_server(at_once, "m"), batch))
    site.store.expire()
    assert not path.exists()


def test_a_row_whose_model_is_not_here_has_its_error(site) -> None:
    async def missing(_: str):
        return ModelNotFound("m")

    asyncio.run(run(site.make_server(missing), site.batch))
    shown = site.find()
    assert (shown.status, shown.output_file_id) == ("completed", None)
    assert site.read(shown.error_file_id).keys() == ALL.keys()


@in_loop
async def test_a_batch_is_cancelled_while_its_rows_run(site) -> None:
    started = asyncio.Event()

    async def forever(_: str) -> None:
        started.set()
        await asyncio.Event().wait()

    server = site.make_server(forever, "m")
    server.start(site.batch)
    server.start(site.batch)  # it runs once all the same
    await until(started.is_set)
    twice = (server.cancel(site.batch.shown.id, "") for _ in range(2))  # before it has ended
    shown, again = await asyncio.gather(*twice)
    assert shown.status == "cancelling" and again == shown
    with pytest.raises(NotFound):
        await server.cancel(shown.id, "somebody else")
    await until(lambda: site.find().status == "cancelled")
    site.open_again()
    assert site.find().status == "cancelled"


def test_a_batch_that_was_being_cancelled_does_not_go_on(site) -> None:
    site.batch.shown.enter("cancelling")
    site.store.save_batch(site.batch)  # as a server leaves it that is killed then
    site.open_again()
    (batch,) = site.store.list_batches()
    asyncio.run(run(site.make_server(at_once, "m"), batch))
    shown = site.find()
    assert (shown.status, shown.request_counts.completed) == ("cancelled", 0)


def test_what_was_written_before_a_kill_counts_once(site) -> None:
    """A batch whose files were made is ended again; a row whose line was cut runs again."""
    path = site.store.output(site.batch.shown.id, "output")
    for name in ("0", "1"):
        add_lines(path, [write_line(f"row-{name}", 200, b'{"of":"prompt-%s"}' % name.encode())])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:9])
    assert read_ended(path) == {"row-0", "row-1"} and path.read_bytes() == whole
    site.store.finish(site.batch, "completed", [])
    made = site.batch.shown.output_file_id
    site.batch.shown.status = "in_progress"  # as the disk has it
    asyncio.run(run(site.make_server(at_once, "m"), site.batch))
    assert site.find().output_file_id == made and site.read(made) == ALL
    site.open_again()
    assert site.find().output_file_id == made and site.find().error_file_id is None
    assert {each.purpose for each in site.store.list_files("")} == {"batch", "batch_output"}


@in_loop
async def test_a_request_waits_until_the_slots_of_rows_are_free() -> None:
    lane, stopped = Lane(RealClock(), Scheduler.__new__(Scheduler)), asyncio.Event()

    def make(*, is_row: bool) -> RunningRequest:
        def stop() -> bool:
            stopped.set()
            return True

        request = Request.without_socket("/v1/completions", b"{}", "batch")
        running = RunningRequest("1", request, ROUTES[0], None)
        bundle = SimpleNamespace(key="model")
        running.wanted, running.stop = Wanted(bundle, Need(), None, None), stop  # type: ignore[arg-type]
        running.is_row = is_row
        return running

    row, live = make(is_row=True), make(is_row=False)
    await lane.queued(row)
    assert not stopped.is_set()
    waits = asyncio.create_task(lane.queued(live))
    await asyncio.sleep(0)
    assert stopped.is_set() and not waits.done()
    lane.released(row)
    await waits


# -- whose a folder is ------------------------------------------------------------------------

HOLDER = """
import sys, time
from pathlib import Path
from vllama.routes.batches.store import BatchStore
store = BatchStore(Path(sys.argv[1]), 10**9)
print(store.open(), flush=True)
time.sleep(600)
"""


def hold(folder) -> subprocess.Popen[str]:
    """Have another process take a folder."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "True\n"
    return holder


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_folder_is_one_server_s_until_it_ends_however_that_is(tmp_path, end) -> None:
    with hold(tmp_path / "batches") as holder:
        second = BatchStore(tmp_path / "batches", GB)
        for _ in range(3):
            assert not second.open()
            with pytest.raises(Busy, match="another server uses this data folder") as told:
                second.check_open()
            assert told.value.status == 503
        holder.send_signal(end)
        holder.wait()
        assert second.open() and second.open()
        second.check_open()
        third = BatchStore(tmp_path / "batches", GB)
        assert not third.open()
        second.close()
        with pytest.raises(Busy):
            second.check_open()
        assert third.open()
        third.close()
        holder.stdout.close()


def test_of_many_servers_that_start_at_once_one_has_the_folder(tmp_path) -> None:
    stores = [BatchStore(tmp_path, GB) for _ in range(8)]
    for _ in range(20):
        with ThreadPoolExecutor(len(stores)) as pool:
            opened = list(pool.map(BatchStore.open, stores))
        assert opened.count(True) == 1, opened
        stores[opened.index(True)].close()


@in_loop
async def test_a_server_goes_on_when_the_one_before_has_ended(site, monkeypatch) -> None:
    monkeypatch.setattr(runner, "LOCKED_S", 0.05)
    first = copy.copy(site)
    site.store = BatchStore(site.store.folder, GB)
    server = site.make_server(at_once, "m")
    waiting = asyncio.create_task(server.run())
    await asyncio.sleep(0.3)
    with pytest.raises(Busy):
        server.store.check_open()
    assert first.find().status == "validating"
    first.store.close()
    await until(lambda: site.store.list_batches() and site.find().status == "completed")
    waiting.cancel()
    assert site.read(site.find().output_file_id) == ALL


def test_a_folder_that_cannot_be_made_keeps_no_server_from_starting(tmp_path) -> None:
    (tmp_path / "batches").write_text("a file")
    store = BatchStore(tmp_path / "batches", GB)
    assert not store.open()
    with pytest.raises(Busy, match="cannot write to the batch folder: File exists"):
        store.check_open()


def test_what_is_damaged_in_a_folder_is_left_out(site) -> None:
    for name in ("batch_1.json", "file-1.json", "file-2.json"):
        (site.store.folder / name).write_text({"file-2.json": "[]"}.get(name, "{"))
    (site.store.folder / "file-3.json").mkdir()
    site.open_again()
    assert [each.shown.id for each in site.store.list_batches()] == [site.batch.shown.id]
    assert len(site.store.list_files("")) == 1


@settings(max_examples=200, deadline=None)
@given(
    most=st.integers(1, 2000),
    steps=st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 1000)), max_size=12),
)
def test_no_key_has_more_than_a_quarter_and_all_no_more_than_the_whole(most, steps) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = BatchStore(Path(folder), most)
        assert store.open()
        for owner, size in steps:
            try:
                store.check_room(owner, size)
            except NoRoom as refusal:
                assert refusal.status == 413
                continue
            new = store.begin_file()
            new.write_bytes(bytes(size))
            store.keep_file(new, "name", owner)
        kept = {owner: sum(x.bytes for x in store.list_files(owner)) for owner in ("", "a", "b")}
        assert sum(kept.values()) <= most
        assert max(kept["a"], kept["b"]) <= most // 4
        store.close()
        again = BatchStore(Path(folder), most)
        assert again.open()
        assert kept == {owner: sum(x.bytes for x in again.list_files(owner)) for owner in kept}
        again.close()
