"""Discrete Intel GPUs (Arc, Data Center GPU), from files of the kernel."""

from __future__ import annotations

from pathlib import Path

from vllama.machine.probe import Findings, list_cards, read_line
from vllama.machine.types import Accelerator, Vendor

INTEL_VENDOR_ID = "0x8086"
INTEGRATED = "0000:00:02.0"
"""Where the graphics of every Intel processor are; they are no faster than its cores."""
SMALL_BAR = 256 * 1024**2


def detect_intel(root: Path = Path("/")) -> Findings:
    """Find the discrete Intel GPUs of this machine; never raises.

    The kernel has no file that tells their memory. With resizable BAR, which these cards are made
    for, their second region on the bus is as large as it; without, it is 256 MiB.
    """
    accelerators: list[Accelerator] = []
    notes: list[str] = []
    for link in list_cards(root):
        device = link.resolve()
        if read_line(device / "vendor") != INTEL_VENDOR_ID or device.name == INTEGRATED:
            continue
        name = f"Intel GPU {read_line(device / 'device') or ''}".rstrip()
        try:
            total = (device / "resource2").stat().st_size
        except OSError:
            total = 0
        if total <= SMALL_BAR:
            notes.append(f"{name} is not used: resizable BAR is off in the firmware")
            continue
        accelerators.append(
            Accelerator(
                vendor=Vendor.INTEL,
                index=len(accelerators),
                name=name,
                total_bytes=total,
                free_bytes=total,  # only root is told what is in use
            )
        )
    return Findings(accelerators=tuple(accelerators), notes=tuple(notes))
