"""The rows of batches: which answer is whose, and which of several servers runs them."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace

import pytest

from vllama.base.errors import EngineCrashed, LimitReached, ModelNotFound
from vllama.dialects.openai.batch_types import Batch
from vllama.routes.batches import runner
from vllama.routes.batches.runner import Batches
from vllama.routes.batches.store import BatchStore, Conflict, StoredBatch

GB = 10**9


class Site:
    """A store with a batch of eight rows, and servers that share it."""

    def __init__(self, folder) -> None:
        self.store = BatchStore(folder, GB, GB)
        rows = (
            {"custom_id": f"row-{n}", "method": "POST", "url": "/v1/completions",
             "body": {"model": "m", "prompt": f"prompt-{n}"}}
            for n in range(8)
        )  # fmt: skip
        new = self.store.begin_file()
        new.write_text("".join(json.dumps(row) + "\n" for row in rows))
        file = self.store.keep_file(new, "rows.jsonl", "batch", "")
        now_s = int(time.time())
        self.batch = StoredBatch("", "", Batch(
            id="batch_" + "0" * 24, endpoint="/v1/completions", input_file_id=file.id,
            completion_window="24h", created_at=now_s, expires_at=now_s + 1000, metadata=None,
        ))  # fmt: skip
        self.store.save_batch(self.batch)

    def make_server(self, answer, *models: str) -> Batches:
        async def look_up(name: str):
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
            catalog=SimpleNamespace(look_up=look_up),
            lane=SimpleNamespace(may_start=lambda *_: True),
            scheduler=None,
        ))  # fmt: skip

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
    return Site(tmp_path)


async def run(server: Batches, batch: StoredBatch) -> None:
    server.start(batch)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others)


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


def test_a_batch_that_has_ended_is_not_cancelled_by_who_read_it_before(site) -> None:
    async def cancel_late() -> None:
        server = site.make_server(at_once, "m")
        stale = site.store.find_batch(site.batch.shown.id, "")
        await run(server, site.batch)
        with pytest.raises(Conflict, match="it is over"):
            await server.cancel(stale)

    asyncio.run(cancel_late())
    assert site.find().status == "completed" and site.read(site.find().output_file_id) == ALL


def test_a_server_without_its_model_leaves_a_batch_to_others(site) -> None:
    asyncio.run(run(site.make_server(at_once), site.batch))
    assert site.find().status == "in_progress"
    asyncio.run(run(site.make_server(at_once, "m"), site.store.list_batches()[0]))
    assert site.find().status == "completed" and site.read(site.find().output_file_id) == ALL


def test_a_batch_that_is_cancelled_ends_also_where_its_model_is_not(site) -> None:
    async def cancel() -> None:
        server = site.make_server(at_once)
        await run(server, site.batch)
        await server.cancel(site.store.list_batches()[0])
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    asyncio.run(cancel())
    assert site.find().status == "cancelled"


def test_what_a_batch_reads_does_not_expire(site) -> None:
    path = site.store.content(site.batch.shown.input_file_id)
    record = path.with_suffix(".json")
    told = json.loads(record.read_bytes())
    told["shown"]["expires_at"] = 1
    record.write_text(json.dumps(told))
    site.store.expire()
    assert path.exists()
    asyncio.run(run(site.make_server(at_once, "m"), site.batch))
    site.store.expire()
    assert not path.exists()
