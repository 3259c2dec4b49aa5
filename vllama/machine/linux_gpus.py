"""AMD and Intel GPUs on Linux, from files of the kernel."""

from __future__ import annotations

import re
from pathlib import Path

from vllama.machine import cpu
from vllama.machine.probe import Findings
from vllama.machine.types import Accelerator, Vendor

AMD_VENDOR_ID = "0x1002"
INTEL_VENDOR_ID = "0x8086"
INTEGRATED = "0000:00:02.0"
"""Where the graphics of every Intel processor are."""
SMALL_BAR = 256 * 1024**2

INSIDE = "integrated into the processor"
"""In every note about graphics there that are not used, which is no fault of the machine."""
NO_GAIN = f"{INSIDE}, is not used: it is not faster than the CPU cores"
APUS = {
    "0x1586": "Strix Halo", "0x150e": "Strix Point", "0x1114": "Krackan Point",
    "0x15bf": "Phoenix", "0x1900": "Hawk Point", "0x1681": "Rembrandt", "0x163f": "Van Gogh",
    "0x164e": "Raphael", "0x13c0": "Granite Ridge", "0x1638": "Cezanne", "0x1636": "Renoir",
}  # fmt: skip
"""Names for the graphics of AMD's processors (pci.ids)."""
IS_APU = re.compile(r"0x[19][0-9a-f]{3}")
"""The ids of all of them; those of cards begin with 6 and 7 (Linux's amdgpu_drv.c). Memory does not
tell: there are carve-outs from 512 MiB to 96 GiB, and a small card may have more GTT than memory of
its own."""
WORTHWHILE = frozenset({"0x1586"})


def detect_amd(root: Path = Path("/")) -> Findings:
    """Find the AMD GPUs of this machine; never raises.

    ROCm's own tools read the same files (rocm_smi_device.cc), so none of them is asked.
    """
    return read_sysfs(root, cpu.measure_usable_ram(cpu.read_cgroup(root)))


def read_sysfs(root: Path, ram: tuple[int, int]) -> Findings:
    """Read `/sys/class/drm/card*/device` of the amdgpu driver; `ram` is total and available.

    Inside a processor, the graphics are used only where the RAM is wider than what the cores alone
    can read, as on Strix Halo; elsewhere each token is bound by the same two channels. Ollama has
    the same rule (discover/runner.go, ollama#16429). Others measured 10 to 15 % more than six cores
    on Vega with seven units (ollama#2637), 38 % less on Intel's UHD (ollama#14953), and half as
    much on a Radeon 890M with a small model (FastFlowLM's benchmarks of Llama 3.2 1B).

    The memory of those is the carve-out, which the system does not count as RAM, and GTT as far as
    there is RAM for it (ollama#12062, nvtop#428). A carve-out that is the larger part is taken for
    the memory of a card: it is nobody else's.
    """
    driver = _read_line(root / "sys/module/amdgpu/version")
    devices = [card for card in _list_cards(root) if _read_line(card / "vendor") == AMD_VENDOR_ID]
    accelerators: list[Accelerator] = []
    notes: list[str] = []
    for index, device in enumerate(devices):
        model = _read_line(device / "device") or ""
        known = APUS.get(model, f"GPU {model}".rstrip())
        name = _read_line(device / "product_name") or f"AMD {known}"
        unique_id = _read_line(device / "unique_id")
        total = _read_number(device / "mem_info_vram_total")
        free = total - _read_number(device / "mem_info_vram_used")
        is_apu = IS_APU.fullmatch(model) is not None
        if is_apu and model not in WORTHWHILE:
            notes.append(f"{name}, {NO_GAIN}")
            continue
        if not total:
            notes.append(f"{name} does not report its memory and is not used")
            continue
        gtt = _read_number(device / "mem_info_gtt_total")
        gtt_free = gtt - _read_number(device / "mem_info_gtt_used")
        if shares_ram := is_apu and min(gtt, ram[0]) > total:
            total, free = total + min(gtt, ram[0]), free + max(0, min(gtt_free, ram[1]))
        accelerators.append(
            Accelerator(
                vendor=Vendor.AMD,
                index=index,
                name=name,
                total_bytes=total,
                free_bytes=max(0, free),
                driver=driver,
                uuid=f"GPU-{unique_id}" if unique_id else None,
                shares_ram=shares_ram,
                bus=device.resolve().name,
            )
        )
    return Findings(accelerators=tuple(accelerators), notes=tuple(notes))


def detect_intel(root: Path = Path("/")) -> Findings:
    """Find the discrete Intel GPUs of this machine; never raises.

    The kernel has no file that tells their memory. With resizable BAR, which these cards are made
    for, their second region on the bus is as large as it; without, it is 256 MiB, and only an
    engine can tell (`engines.devices.tell_memory`).
    """
    accelerators: list[Accelerator] = []
    notes: list[str] = []
    for link in _list_cards(root):
        device = link.resolve()
        if _read_line(device / "vendor") != INTEL_VENDOR_ID:
            continue
        name = f"Intel GPU {_read_line(device / 'device') or ''}".rstrip()
        if device.name == INTEGRATED:
            notes.append(f"{name}, {NO_GAIN}")
            continue
        try:
            total = (device / "resource2").stat().st_size
        except OSError:
            total = 0
        total = total if total > SMALL_BAR else 0
        accelerators.append(
            Accelerator(
                vendor=Vendor.INTEL,
                index=len(accelerators),
                name=name,
                total_bytes=total,
                free_bytes=total,  # only root is told what is in use
                bus=device.name,
            )
        )
    return Findings(accelerators=tuple(accelerators), notes=tuple(notes))


def _list_cards(root: Path) -> list[Path]:
    """Return the devices of Linux's graphics cards, in their order."""
    cards = [p for p in (root / "sys/class/drm").glob("card*") if re.fullmatch(r"card\d+", p.name)]
    return [card / "device" for card in sorted(cards, key=lambda path: int(path.name[4:]))]


def _read_line(path: Path) -> str | None:
    """Return the content of a small file of the kernel; None if it is empty."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def _read_number(path: Path) -> int:
    """Return the number in a small file of the kernel; 0 if there is none."""
    text = _read_line(path) or ""
    return int(text) if text.isdigit() else 0
