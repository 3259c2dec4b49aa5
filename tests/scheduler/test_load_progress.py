"""How far a load is: from the engine's log, while it loads and no longer."""

from __future__ import annotations

import pytest

from tests.scheduler.world import World, in_loop, reach, request
from vllama.scheduler import load_progress
from vllama.scheduler.load_progress import find_share
from vllama.supervise.logs import LogRing

VLLM = "(Core pid=71) Loading safetensors checkpoint shards:  {}% Completed | {}/4 [00:01<00:01]"
SGLANG = "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:00<00:00,  4.35it/s]"
TRANSFORMERS = "Loading weights:  25%|██▌       | 68/272 [00:00<00:01, 184.1it/s]"


@pytest.mark.parametrize(
    ("lines", "share"),
    [
        ([], 0.0),
        ([VLLM.format(0, 0)], 0.0),
        ([VLLM.format(25, 1), "INFO: something else", VLLM.format(50, 2)], 0.5),
        ([VLLM.format(50, 2), "INFO: it goes on"], 0.5),
        ([SGLANG], 1.0),
        ([TRANSFORMERS], 0.25),
        (["Loading 3/4 of the plugins", "GET /v1/models 1/2"], 0.0),
        (["Loading weights: 0% | 0/0"], 0.0),
    ],
)
def test_the_log_tells_the_share_of_the_weights(lines: list[str], share: float) -> None:
    assert find_share(lines) == share


@in_loop
async def test_a_row_has_the_progress_of_its_load_until_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_progress, "LOOK_S", 0.001)
    world, log = World(), LogRing()
    world.auto_open = False
    async with world.running() as scheduler:
        ask = request(scheduler)
        await reach(lambda: world.processes)
        world.processes[0].output = lambda: log
        await reach(lambda: scheduler.list_models()[0].load)
        (row,) = scheduler.list_models()
        assert row.load is not None and row.load.completed_bytes == 0
        log.append(VLLM.format(50, 2))
        await reach(lambda: scheduler.list_models()[0].load.completed_bytes)
        (row,) = scheduler.list_models()
        assert row.load is not None and row.load.completed_bytes == row.bundle.size_bytes // 2
        world.processes[0].open()
        await ask
        await reach(lambda: scheduler.list_models()[0].load is None)
