"""Trees of sysfs with Intel graphics."""

from __future__ import annotations

import os
from pathlib import Path

from vllama.machine.intel import detect_intel
from vllama.machine.types import Vendor

GIB = 1024**3


def card(root: Path, number: int, address: str, bar: int, vendor: str = "0x8086") -> None:
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
    card(tmp_path, 0, "0000:00:02.0", GIB)  # the processor's
    card(tmp_path, 1, "0000:03:00.0", 16 * GIB)
    card(tmp_path, 2, "0000:04:00.0", 24 * GIB, vendor="0x1002")
    found = detect_intel(tmp_path)
    (gpu,) = found.accelerators
    assert (gpu.vendor, gpu.index, gpu.name) == (Vendor.INTEL, 0, "Intel GPU 0x56a0")
    assert gpu.total_bytes == gpu.free_bytes == 16 * GIB
    assert found.notes == ()


def test_without_resizable_bar_its_memory_is_unknown(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:03:00.0", GIB // 4)
    found = detect_intel(tmp_path)
    assert found.accelerators == ()
    assert found.notes == ("Intel GPU 0x56a0 is not used: resizable BAR is off in the firmware",)


def test_without_cards(tmp_path: Path) -> None:
    assert detect_intel(tmp_path) == detect_intel(tmp_path / "absent")
    assert not detect_intel(tmp_path).notes
