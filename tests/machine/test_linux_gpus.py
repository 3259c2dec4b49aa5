"""sysfs trees and recorded `rocm-smi` outputs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from vllama.machine.linux_gpus import detect_intel, parse_rocm_smi, read_sysfs
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


def intel_card(root: Path, number: int, address: str, bar: int, vendor: str = "0x8086") -> None:
    device = root / "sys/devices/pci0000:00" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "device").write_text("0x56a0\n")
    (device / "resource2").touch()
    os.truncate(device / "resource2", bar)
    link = root / f"sys/class/drm/card{number}/device"
    link.parent.mkdir(parents=True)
    link.symlink_to(device)


def test_only_cards_with_memory_of_their_own_count(tmp_path: Path) -> None:
    intel_card(tmp_path, 0, "0000:00:02.0", GIB)  # the processor's
    intel_card(tmp_path, 1, "0000:03:00.0", 16 * GIB)
    intel_card(tmp_path, 2, "0000:04:00.0", 24 * GIB, vendor="0x1002")
    found = detect_intel(tmp_path)
    (gpu,) = found.accelerators
    assert (gpu.vendor, gpu.index, gpu.name) == (Vendor.INTEL, 0, "Intel GPU 0x56a0")
    assert gpu.total_bytes == gpu.free_bytes == 16 * GIB
    assert found.notes == ()


def test_without_resizable_bar_its_memory_is_unknown(tmp_path: Path) -> None:
    intel_card(tmp_path, 0, "0000:03:00.0", GIB // 4)
    found = detect_intel(tmp_path)
    assert found.accelerators == ()
    assert found.notes == ("Intel GPU 0x56a0 is not used: resizable BAR is off in the firmware",)


def test_without_cards(tmp_path: Path) -> None:
    assert detect_intel(tmp_path) == detect_intel(tmp_path / "absent")
    assert not detect_intel(tmp_path).notes
