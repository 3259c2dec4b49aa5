"""sysfs trees and recorded `rocm-smi` outputs."""

from __future__ import annotations

import json
from pathlib import Path

from vllama.machine.amd import parse_rocm_smi, read_sysfs
from vllama.machine.types import Vendor

GIB = 1024**3


def card(root: Path, number: int, **files: str) -> None:
    device = root / f"sys/class/drm/card{number}/device"
    device.mkdir(parents=True)
    for name, text in files.items():
        (device / name).write_text(text + "\n")


def test_sysfs(tmp_path: Path) -> None:
    card(tmp_path, 0, vendor="0x8086")
    card(
        tmp_path,
        10,
        vendor="0x1002",
        device="0x744c",
        mem_info_vram_total=str(24 * GIB),
        mem_info_vram_used=str(GIB),
    )
    card(
        tmp_path,
        2,
        vendor="0x1002",
        product_name="AMD Instinct MI210",
        unique_id="abcdef",
        mem_info_vram_total=str(64 * GIB),
        mem_info_vram_used="0",
    )
    (tmp_path / "sys/class/drm/card2-DP-1").mkdir()
    module = tmp_path / "sys/module/amdgpu/version"
    module.parent.mkdir(parents=True)
    module.write_text("6.10.5\n")
    first, second = read_sysfs(tmp_path).accelerators
    assert (first.index, first.name, first.uuid) == (0, "AMD Instinct MI210", "GPU-abcdef")
    assert (second.index, second.name) == (1, "AMD GPU 0x744c")
    assert (second.total_bytes, second.free_bytes) == (24 * GIB, 23 * GIB)
    assert first.driver == "6.10.5"
    assert first.vendor is Vendor.AMD


def test_sysfs_without_cards(tmp_path: Path) -> None:
    assert read_sysfs(tmp_path).accelerators == ()


def test_rocm_smi() -> None:
    table = {
        "card0": {
            "VRAM Total Memory (B)": str(16 * GIB),
            "VRAM Total Used Memory (B)": str(4 * GIB),
            "Card Series": "Radeon RX 7800 XT",
        },
        "card1": {"Card Series": "no memory told"},
        "system": {"Driver version": "6.8.5"},
    }
    found = parse_rocm_smi(
        "WARNING: AMD GPU device(s) is/are in a low-power state\n" + json.dumps(table)
    )
    (gpu,) = found.accelerators
    assert (gpu.name, gpu.total_bytes, gpu.free_bytes) == (
        "Radeon RX 7800 XT",
        16 * GIB,
        12 * GIB,
    )
    assert gpu.driver == "6.8.5"


def test_rocm_smi_error() -> None:
    found = parse_rocm_smi("ERROR: Driver not initialized (amdgpu not found in modules)\n")
    assert found.accelerators == ()
    assert "Driver not initialized" in found.notes[0]
    assert parse_rocm_smi("{broken").notes
    assert parse_rocm_smi("").notes == ('rocm-smi printed: "nothing"',)
