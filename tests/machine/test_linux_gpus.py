"""sysfs trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllama.machine.detect import assemble
from vllama.machine.linux_gpus import INSIDE, detect_intel, read_sysfs
from vllama.machine.types import Vendor

GIB = 1024**3
RAM = (60 * GIB, 50 * GIB)


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
    card(tmp_path, 11, vendor="0x1002", device="0x7480", mem_info_vram_total="unknown")
    found = read_sysfs(tmp_path, RAM)
    first, second = found.accelerators
    assert found.notes == ("AMD GPU 0x7480 does not report its memory and is not used",)
    assert (first.index, first.name, first.uuid) == (0, "AMD Instinct MI210", "GPU-abcdef")
    assert (second.index, second.name) == (1, "AMD GPU 0x744c")
    assert (second.total_bytes, second.free_bytes) == (24 * GIB, 23 * GIB)
    assert first.driver == "6.10.5"
    assert first.vendor is Vendor.AMD


@pytest.mark.parametrize(
    ("device", "vram", "gtt", "total", "free"),
    [
        # a card has its own memory only, however small it is
        ("0x744c", 24, 32, 24, 23.5),
        ("0x699f", 2, 32, 2, 1.5),  # RX 550
        (None, 8, 32, 8, 7.5),
        # Strix Halo: the carve-out, and of GTT what RAM has
        ("0x1586", 0.5, 120, 60.5, 50),
        ("0x1586", 0.5, 30, 30.5, 29),
        ("0x1586", 64, 32, 64, 63.5),  # most of it is the carve-out, which is no RAM of the system
        ("0x1586", 96, 16, 96, 95.5),
        # the processor's graphics are no gain, whatever their carve-out; also those not known yet
        *(
            (device, vram, 14, 0, 0)
            for device in ("0x15bf", "0x1638", "0x164e")
            for vram in (0.5, 4)
        ),
        ("0x1999", 16, 14, 0, 0),
        ("0x9874", 1, 8, 0, 0),
    ],
)
def test_memory_of_cards_and_processors(tmp_path, device, vram, gtt, total, free) -> None:
    sizes = {"vram_total": vram, "vram_used": 0.5, "gtt_total": gtt, "gtt_used": 1}
    files = {f"mem_info_{name}": str(int(size * GIB)) for name, size in sizes.items()}
    card(tmp_path, 0, vendor="0x1002", **({"device": device} if device else {}), **files)
    found = read_sysfs(tmp_path, RAM)
    if not total:
        assert not found.accelerators
        assert INSIDE in found.notes[0]
        return
    (gpu,) = found.accelerators
    assert (gpu.total_bytes / GIB, gpu.free_bytes / GIB) == (total, free)
    assert gpu.shares_ram is (device == "0x1586" and vram < gtt)
    assert not found.notes


def test_gpus_keep_the_numbers_that_the_driver_counts_by(tmp_path: Path) -> None:
    card(tmp_path, 0, vendor="0x1002", device="0x164e", mem_info_vram_total=str(GIB))
    card(tmp_path, 1, vendor="0x1002", device="0x744c", mem_info_vram_total=str(24 * GIB))
    assert [gpu.index for gpu in read_sysfs(tmp_path, RAM).accelerators] == [1]


def test_sysfs_without_cards(tmp_path: Path) -> None:
    assert read_sysfs(tmp_path, RAM).accelerators == ()


def test_an_odd_card_leaves_the_others_alone(tmp_path: Path) -> None:
    for number, total in enumerate(("", "0", "\xff", str(16 * GIB))):
        card(tmp_path, number, vendor="0x1002", device="0x73bf", mem_info_vram_total=total)
    (tmp_path / "sys/class/drm/card9/device").mkdir(parents=True)
    found = read_sysfs(tmp_path, RAM)
    assert [(gpu.index, gpu.free_bytes) for gpu in found.accelerators] == [(3, 16 * GIB)]
    assert len(found.notes) == 3


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
    assert found.notes == (
        "Intel GPU 0x56a0, integrated into the processor, is not used: it is not faster than "
        "the CPU cores",
    )


def test_without_resizable_bar_its_memory_is_unknown(tmp_path: Path) -> None:
    intel_card(tmp_path, 0, "0000:03:00.0", GIB // 4)
    found = detect_intel(tmp_path)
    assert [gpu.total_bytes for gpu in found.accelerators] == [0]
    known = assemble(system="linux", arch="x86_64", processor=None, mac=None, findings=(found,))
    assert known.untold == found.accelerators
    assert not known.accelerators
    assert "Vulkan build can use it" in known.notes[0]


def test_without_cards(tmp_path: Path) -> None:
    assert detect_intel(tmp_path) == detect_intel(tmp_path / "absent")
    assert not detect_intel(tmp_path).notes
