"""AMD and Intel GPUs on Linux: from files of the kernel, or else AMD's from `rocm-smi`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from vllama.machine.probe import Findings, run_command
from vllama.machine.types import Accelerator, Vendor

AMD_VENDOR_ID = "0x1002"
SMI_TIMEOUT_S = 5.0
INTEL_VENDOR_ID = "0x8086"
INTEGRATED = "0000:00:02.0"
"""Where the graphics of every Intel processor are; they are no faster than its cores."""
SMALL_BAR = 256 * 1024**2


def detect_amd(root: Path = Path("/")) -> Findings:
    """Find the AMD GPUs of this machine; never raises."""
    findings = read_sysfs(root)
    if findings.accelerators:
        return findings
    smi = shutil.which("rocm-smi")
    if smi is None:
        return findings
    argv = [smi, "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json"]
    out = run_command(argv, timeout_s=SMI_TIMEOUT_S)
    return Findings(notes=(out.problem,)) if out.problem else parse_rocm_smi(out.text)


def read_sysfs(root: Path = Path("/")) -> Findings:
    """Read `/sys/class/drm/card*/device` of the amdgpu driver."""
    driver = _read_line(root / "sys/module/amdgpu/version")
    accelerators: list[Accelerator] = []
    for device in _list_cards(root):
        total = _read_line(device / "mem_info_vram_total")
        if _read_line(device / "vendor") != AMD_VENDOR_ID or total is None or not total.isdigit():
            continue
        used = _read_line(device / "mem_info_vram_used") or "0"
        unique_id = _read_line(device / "unique_id")
        accelerators.append(
            Accelerator(
                vendor=Vendor.AMD,
                index=len(accelerators),
                name=_read_line(device / "product_name")
                or f"AMD GPU {_read_line(device / 'device') or ''}",
                total_bytes=int(total),
                free_bytes=max(0, int(total) - int(used)) if used.isdigit() else int(total),
                driver=driver,
                uuid=f"GPU-{unique_id}" if unique_id else None,
            )
        )
    return Findings(accelerators=tuple(accelerators))


def parse_rocm_smi(text: str) -> Findings:
    """Parse `rocm-smi --showproductname --showmeminfo vram --showdriverversion --json`.

    Warnings may precede the JSON, and the case of the keys differs between releases.
    """
    start = text.find("{")
    try:
        table = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        table = None
    if not isinstance(table, dict):
        first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        return Findings(notes=(f'rocm-smi printed: "{first}"',))
    driver = _text(table.get("system"), "driver version")
    accelerators: list[Accelerator] = []
    for key in sorted((k for k in table if re.fullmatch(r"card\d+", k)), key=lambda k: int(k[4:])):
        card = table[key]
        total = _text(card, "vram total memory (b)")
        if total is None or not total.isdigit():
            continue
        used = _text(card, "vram total used memory (b)") or "0"
        accelerators.append(
            Accelerator(
                vendor=Vendor.AMD,
                index=int(key[4:]),
                name=_text(card, "card series") or _text(card, "card model") or "AMD GPU",
                total_bytes=int(total),
                free_bytes=max(0, int(total) - int(used)) if used.isdigit() else int(total),
                driver=driver,
            )
        )
    return Findings(accelerators=tuple(accelerators))


def _text(table: object, name: str) -> str | None:
    if not isinstance(table, dict):
        return None
    for key, value in table.items():
        if isinstance(key, str) and key.lower() == name and isinstance(value, str):
            return value.strip()
    return None


def detect_intel(root: Path = Path("/")) -> Findings:
    """Find the discrete Intel GPUs of this machine; never raises.

    The kernel has no file that tells their memory. With resizable BAR, which these cards are made
    for, their second region on the bus is as large as it; without, it is 256 MiB.
    """
    accelerators: list[Accelerator] = []
    notes: list[str] = []
    for link in _list_cards(root):
        device = link.resolve()
        if _read_line(device / "vendor") != INTEL_VENDOR_ID or device.name == INTEGRATED:
            continue
        name = f"Intel GPU {_read_line(device / 'device') or ''}".rstrip()
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


def _list_cards(root: Path) -> list[Path]:
    """Return the devices of Linux's graphics cards, in their order."""
    cards = [p for p in (root / "sys/class/drm").glob("card*") if re.fullmatch(r"card\d+", p.name)]
    return [card / "device" for card in sorted(cards, key=lambda path: int(path.name[4:]))]


def _read_line(path: Path) -> str | None:
    """Return what a small file of the kernel says; None if that is nothing."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
