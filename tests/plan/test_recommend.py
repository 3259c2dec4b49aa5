"""Which models are recommended, on tables of machines; nothing is asked of the network."""

from __future__ import annotations

import pytest

from tests.facts import LLAMA_SERVER, LLAMA_SERVER_HERE
from vllama.base.errors import ConfigError
from vllama.config.engine_settings import EngineSettings
from vllama.engines.base import DiscoveredEngines, Missing
from vllama.machine.detect import detect
from vllama.plan.recommend import (
    FITS,
    MODELS,
    USES,
    Recommendation,
    check_use,
    list_recommendations,
)
from vllama.plan.types import Facts
from vllama.server.preflight import suppose_machine


def recommend(gpus: list[str], ram: str, *, installed: bool = True) -> dict[str, Recommendation]:
    name = LLAMA_SERVER.name
    found = DiscoveredEngines(
        engines={name: LLAMA_SERVER},
        installations={name: LLAMA_SERVER_HERE} if installed else {},
        missing={}
        if installed
        else {name: Missing(engine=name, reason="not installed", hint="install it")},
    )
    here = Facts(platform=detect(), found=found, settings=EngineSettings())
    return {row.model: row for row in list_recommendations(suppose_machine(here, gpus, ram))}


MACHINES = [
    # GPUs, RAM, the first, what else runs well, what is slow, what is too large
    ([], "2GB", "qwen3:1.7b", ["qwen3:0.6b"], [], ["qwen3:4b", "gpt-oss:20b"]),
    ([], "8GB", "qwen3:4b", ["llama3.2:3b"], ["qwen3:8b"], ["qwen3:14b", "qwen3:30b"]),
    ([], "32GB", "qwen3-coder:30b", ["gpt-oss:20b"], ["qwen3:32b"], ["llama3.3:70b"]),
    (["8GB"], "16GB", "qwen3-coder:30b", ["qwen3:8b"], ["qwen3:32b"], ["llama3.3:70b"]),
    (["RTX 4090"], "64GB", "gpt-oss:120b", ["qwen3:32b"], ["llama3.3:70b"], []),
    (["H100"], "256GB", "gpt-oss:120b", ["llama3.3:70b"], [], []),
]


@pytest.mark.parametrize(("gpus", "ram", "first", "well", "slow", "not_at_all"), MACHINES)
def test_what_suits_comes_first(gpus, ram, first, well, slow, not_at_all) -> None:
    rows = recommend(gpus, ram)
    assert next(iter(rows)) == first and rows[first].fit == "fits"
    assert [rows[name].fit for name in well] == ["fits"] * len(well)
    assert [rows[name].fit for name in slow] == ["slow"] * len(slow)
    assert [rows[name].fit for name in not_at_all] == ["too large"] * len(not_at_all)
    fits = [FITS.index(row.fit) for row in rows.values()]
    assert fits == sorted(fits) and len(rows) == len(MODELS)


def test_where_a_model_would_lie() -> None:
    rows = recommend(["8GB"], "16GB")
    assert rows["qwen3:8b"].where == "GPU" and rows["qwen3:8b"].gpu_bytes > 5e9
    assert rows["qwen3:14b"].where.endswith("of 40 layers on the GPU")
    assert rows["qwen3:30b"].where.endswith("of 48 layers in RAM")
    assert rows["llama3.3:70b"].where.startswith("needs ")
    assert recommend([], "16GB")["qwen3:4b"].where == "RAM"


def test_without_an_engine_it_is_as_with_the_one_that_can_be_installed() -> None:
    here, nowhere = (recommend([], "16GB", installed=installed) for installed in (True, False))
    assert {name: row.fit for name, row in here.items()} == {
        name: row.fit for name, row in nowhere.items()
    }


@pytest.mark.parametrize("known", MODELS, ids=lambda known: known.name)
def test_each_row_is_a_model(known) -> None:
    info = known.make_info()
    assert set(known.uses) <= set(USES) and known.uses
    assert known.heads % known.kv_heads == 0 and known.context >= 2048
    # the size is that of a quantization: 3 to 9 bits of each weight, 16 of an F16
    elements = sum(a * b * (rest[0] if rest else 1) for _, _, (a, b, *rest) in info.tensors)
    bits = known.size_bytes * 8 / elements
    assert 3 < bits < (18 if known.quant in ("F16", "Q8_0") else 9), bits


def test_a_use_that_nobody_knows() -> None:
    with pytest.raises(ConfigError, match="cannot recommend for 'poems'"):
        check_use("poems")
