"""llama.cpp's Vulkan build on Mesa's software device: what `ps` says against the engine's log.

A made-up nvidia-smi stands in for the cards, so that there is a GPU to plan for. The device is one;
GGML_VK_VISIBLE_DEVICES=0,0 names it twice.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import MODEL
from tests.lacking import lacking
from tests.server_process import Server

pytestmark = [pytest.mark.slow, pytest.mark.vulkan]
ASKED = {"model": MODEL, "prompt": "Hello", "stream": False, "options": {"num_predict": 2}}
BUFFER = re.compile(
    r"(Vulkan\d|CPU\w*|Vulkan_Host) +(?:model|KV|compute|output) buffer size = +(\S+) MiB"
)
SMI = """#!/bin/sh
case "$*" in *compute-apps*) exit;; *uuid,index*) exit;; esac
for i in {cards}; do
  echo "$i, NVIDIA Soft 2000, 2048, 2048, 570.86, 8.9, GPU-$i, [N/A], 00000000:0$i:00.0"
done
"""
ENGINE = """#!/bin/sh
[ ! -e {gone} ] || export VK_DRIVER_FILES=/nowhere VK_ICD_FILENAMES=/nowhere
exec {program} "$@"
"""


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def serve(home: Path, *options: str, cards: int = 1, config: str = "") -> Server:
    """Return a server on a machine with so many cards; the file `gone` takes their driver away."""
    program = os.environ.get("VLLAMA_TEST_VULKAN") or lacking(
        "no Vulkan build; run: make test-vulkan"
    )
    numbers = " ".join(map(str, range(cards)))
    write_program(home / "bin/nvidia-smi", SMI.format(cards=numbers))
    engine = write_program(
        home / "bin/llama-server", ENGINE.format(gone=home / "gone", program=program)
    )
    (home / "config.toml").write_text(config)
    env = {
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "GGML_VK_VISIBLE_DEVICES": ",".join(["0"] * cards),
        "VLLAMA_ENGINE_PATHS": f"llama-server={engine}",
        "VLLAMA_CONFIG": str(home / "config.toml"),
    }
    return Server(home, "--engine", "llama-server", *options, fake=False, env=env)


def load(server: Server):
    """Load the model; return its row, and the MiB that the engine's log names, by device."""
    status, _ = server.post("/api/generate", ASKED)
    assert status == 200
    (row,) = server.get("/api/ps")["models"]
    log = server.engine_log(MODEL)
    sizes: dict[str, float] = {}
    for device, size in BUFFER.findall(log):
        sizes[device] = sizes.get(device, 0.0) + float(size)
    return row, sizes, log


def test_half_a_model_on_the_device(tmp_path):
    with serve(tmp_path, "--gpu-layers", "10") as server:
        server.wait_for("ready: http")
        row, sizes, log = load(server)
        assert "offloaded 10/31 layers" in log
        assert row["size_vram"] / 1024**2 == pytest.approx(sizes["Vulkan0"], abs=0.1)
        assert row["size_vram"] < row["size"]
        assert row["placement"].startswith("10 of 31 layers on the GPU: ")


@pytest.mark.parametrize(
    ("gpus", "devices"), [("[1]", {"Vulkan1"}), ('"spread"', {"Vulkan0", "Vulkan1"})]
)
def test_of_two_devices_those_of_the_plan(tmp_path, gpus, devices):
    with serve(tmp_path, cards=2, config=f'[models."{MODEL}"]\ngpus = {gpus}\n') as server:
        server.wait_for("ready: http")
        row, sizes, _ = load(server)
        assert {name for name in sizes if name[-1].isdecimal()} == devices
        held = sum(size for name, size in sizes.items() if name in devices)
        assert row["size_vram"] / 1024**2 == pytest.approx(held, abs=0.2)


def test_a_device_that_is_gone_and_comes_back(tmp_path):
    with serve(tmp_path) as server:
        server.wait_for("ready: http")
        row, sizes, _ = load(server)
        assert row["size_vram"] and sizes["Vulkan0"] and "cause" not in row
        for gone in (True, False):
            server.post("/api/generate", {"model": MODEL, "keep_alive": 0})
            while server.get("/api/ps")["models"]:
                time.sleep(0.1)
            (tmp_path / "gone").touch() if gone else (tmp_path / "gone").unlink()
            row, sizes, _ = load(server)
            assert bool(row["size_vram"]) == ("Vulkan0" in sizes) == (not gone)
            assert ("no usable GPU" in row.get("cause", "")) == gone
        assert "no usable GPU" in server.log.read_text()
