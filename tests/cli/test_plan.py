"""`vllama plan`: the decision and its reasons, with real files and a stand-in hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.hub import StandInHub
from tests.tiny import write_tiny_gguf


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny-Q4_K_M.gguf", n_ctx=2_000_000_000)


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine, found by its entry point: these tests need no other."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "fake_engine")


def test_a_model_that_is_here(gguf: Path, vllama: Vllama) -> None:
    done = vllama("plan", str(gguf), "--context-length", "1024", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (
        result["format"] == "gguf" and result["download_bytes"] == 0 and result["candidates"] == []
    )
    (file,) = result["files"]
    assert (file["here"], file["size_bytes"]) == (True, gguf.stat().st_size)
    rows = {row["engine"]: row for row in result["engines"]}
    assert not rows["vllm"]["taken"] and "does not read gguf" in rows["vllm"]["reason"]
    assert result["context_length"] == 1024
    memory = result["memory"]
    assert memory["total_bytes"] == sum(
        memory[name]
        for name in ("weights_bytes", "kv_cache_bytes", "compute_bytes", "process_bytes")
    )
    assert "PORT" in result["command"]
    assert result["command"][result["command"].index("--context") + 1] == "1024"


def test_a_person_sees_sections(gguf: Path, vllama: Vllama) -> None:
    done = vllama("plan", str(gguf))
    titles = [line.strip() for line in done.stdout.splitlines() if line[2:3].strip()]
    assert titles == [
        *("Model", "Platform", "Engines", "Files", "Needed memory", "Devices"),
        *("Now", "Reasons", "If that fails", "Command"),
    ]
    assert "nothing; it is here" in done.stdout and "→" in done.stdout


def test_a_model_on_the_hub_is_not_downloaded(gguf: Path, env: dict[str, str], vllama) -> None:
    with hub_with(gguf) as hub:
        env["HF_ENDPOINT"] = hub.url
        result = json.loads(vllama("plan", "org/tiny-GGUF", "--json").stdout)
        hub.settle()
        assert hub.sent("cdn") <= gguf.stat().st_size  # the header only; here it is all there is
    assert result["download_bytes"] == gguf.stat().st_size
    assert result["model"] == "hf.co/org/tiny-GGUF:Q4_K_M"
    (taken,) = [row for row in result["candidates"] if row["taken"]]
    assert taken["repository"] == "org/tiny-GGUF" and taken["reason"]
    assert not (Path(env["HOME"]) / ".cache/huggingface/hub").exists()


def hub_with(gguf: Path) -> StandInHub:
    """Return a hub with one repository."""
    hub = StandInHub()
    hub.add_repo("org/tiny-GGUF", {gguf.name: gguf})
    return hub


def test_what_does_not_fit_is_said_with_numbers(gguf: Path, vllama: Vllama) -> None:
    done = vllama("plan", str(gguf), "--context-length", "2000000000")
    assert done.returncode == 3
    assert "model requires more system memory" in done.stderr and "smaller" in done.stderr
    assert "Engines" in done.stdout and "Command" not in done.stdout
    result = json.loads(
        vllama("plan", str(gguf), "--context-length", "2000000000", "--json").stdout
    )
    assert "GiB" in result["error"] and result["hint"]


def test_a_machine_that_is_not_here(gguf: Path, vllama: Vllama) -> None:
    told = json.loads(vllama("plan", str(gguf), "--gpu", "2x RTX 3060", "--json").stdout)
    assert "2 × RTX 3060 (12 GiB, compute 8.6)" in told["platform"]
    assert "Assumes" in told["platform_notes"][0]
    assert {row["pool"] for row in told["devices"]} <= {"gpu0", "gpu1", "ram"}
    done = vllama("plan", str(gguf), "--ram", "3GB")
    assert "3 GiB RAM, no GPU" in done.stdout and "Assumes" in done.stdout
    shared = json.loads(vllama("plan", str(gguf), "--gpu", "GB10", "--json").stdout)
    assert "128 GiB RAM" in shared["platform"]


def test_a_gpu_or_a_size_that_means_nothing(gguf: Path, vllama: Vllama) -> None:
    for wrong, word in ((("--gpu", "RTX 3065"), "RTX 3060"), (("--ram", "much"), "not a size")):
        done = vllama("plan", str(gguf), *wrong)
        assert done.returncode and word in done.stderr
    assert "cannot use --nodes" in vllama("plan", str(gguf), "--nodes", "--ram", "8GB").stderr


def test_an_unknown_name(vllama: Vllama) -> None:
    done = vllama("plan", "/no/such/model.gguf")
    assert done.returncode != 0 and "cannot find a model" in done.stderr


def test_several_models_are_planned_together(gguf: Path, tmp_path: Path, vllama: Vllama) -> None:
    other = write_tiny_gguf(tmp_path / "other-Q4_K_M.gguf")
    words = ("plan", str(gguf), str(other), "--context-length", "128")
    done = vllama(*words, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    needs = [report["memory"]["total_bytes"] for report in told["models"]]
    assert len(needs) == 2 and told["together"]["fits"]
    assert sum(row["takes_bytes"] for row in told["together"]["devices"]) == sum(needs)
    lines = vllama(*words).stdout.splitlines()
    assert lines[0].split() == ["MODEL", "QUANT", "ENGINE", "CONTEXT", "MEMORY", "DOWNLOAD"]
    assert lines[3].startswith("total ") and lines[3].rstrip().endswith("0 B")
    assert "They fit together" in lines[-1] or "They fit together" in lines[-2]


def test_an_error_of_one_of_several_is_told_for_that_one(gguf: Path, vllama: Vllama) -> None:
    words = ("plan", "/no/such/model.gguf", str(gguf), "--context-length", "128")
    done = vllama(*words)
    assert done.returncode != 0 and "cannot find a model" in done.stderr
    assert "/no/such/model.gguf cannot be loaded" in " ".join(done.stdout.split())
    lost, found = json.loads(vllama(*words, "--json").stdout)["models"]
    assert "cannot find a model" in lost["error"] and found["now"]["fits"]
