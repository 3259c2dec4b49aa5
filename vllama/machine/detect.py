"""This machine: what it has, by probes that run at once, each with a limit; and how busy it is."""

from __future__ import annotations

import platform
import re
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

import psutil

from vllama.base.threads import begin
from vllama.base.units import format_bytes_binary
from vllama.machine import apple, cpu, linux_gpus, nvidia
from vllama.machine.linux_gpus import INSIDE
from vllama.machine.probe import Findings
from vllama.machine.types import Accelerator, Platform, Vendor, explain_untold

PROBE_LIMIT_S = 3.0
NVIDIA_LIMIT_S = 15.0
"""A sleeping driver needs seconds per GPU, and overlooking the GPUs would be worse than waiting."""

SHARES_RAM = re.compile(r"\b(GB[12]\d|N1X?|Thor|Orin|Xavier|Tegra|Jetson)\b")
"""In the names of NVIDIA's GPUs without memory of their own; GB200 and GB300 have some."""
HAS_MEMORY = re.compile(
    r"GeForce|RTX|Quadro|Tesla|GRID|-\d+[ABCQ]\b|\b(GB|GH|[ABHLTV])\d{1,3}\D?\b"
)
"""In the names of cards, also where one is divided into virtual ones (`A16-8Q`)."""
NO_FEATURES: frozenset[str] = frozenset()

T = TypeVar("T")


def detect() -> Platform:
    """Detect the facts of this machine, with all its GPUs; failures become `notes`."""
    system = platform.system().lower()
    processor = begin(cpu.detect_cpu)
    mac = begin(apple.read_mac) if system == "darwin" else None
    gpus = []
    if system in ("linux", "windows"):
        gpus.append(("nvidia", begin(nvidia.detect_nvidia), NVIDIA_LIMIT_S))
    if system == "linux":
        gpus.append(("amd", begin(linux_gpus.detect_amd), PROBE_LIMIT_S))
        gpus.append(("intel", begin(linux_gpus.detect_intel), PROBE_LIMIT_S))
    notes: list[str] = []
    gpu_findings = [_wait(*probe, notes) or Findings() for probe in gpus]
    mac_facts, mac_findings = (mac and _wait("sysctl", mac, PROBE_LIMIT_S, notes)) or (
        None,
        Findings(),
    )
    return assemble(
        system=system,
        arch=platform.machine(),
        processor=_wait("cpu", processor, PROBE_LIMIT_S, notes),
        mac=mac_facts,
        findings=(*gpu_findings, mac_findings, Findings(notes=tuple(notes))),
    )


def free_ram_bytes(kept_bytes: int = 0) -> int:
    """Return the memory that is available now; fast enough to call before every load.

    `kept_bytes` of the page cache are weights that running engines have mapped.
    """
    return cpu.measure_usable_ram(cpu.read_cgroup(), kept_bytes)[1]


def find_unwritten_bytes() -> int:
    """Return the memory that is free as soon as the system has written it to files."""
    return cpu.read_cgroup().memory_unwritten_bytes


def with_free_memory(machine: Platform) -> Platform:
    """Return the same machine with the memory that is free now, also on its GPUs."""
    found = detect().accelerators if machine.accelerators else ()
    now = {(gpu.vendor, gpu.index): gpu for gpu in found}
    return replace(
        machine,
        accelerators=tuple(now.get((gpu.vendor, gpu.index), gpu) for gpu in machine.accelerators),
        ram_available_bytes=free_ram_bytes(),
    )


def assemble(
    *,
    system: str,
    arch: str,
    processor: cpu.Cpu | None,
    mac: apple.Mac | None,
    findings: tuple[Findings, ...],
) -> Platform:
    """Combine the results of the probes. Pure."""
    total = processor.ram_total_bytes if processor else (mac.ram_bytes if mac else 0)
    available = processor.ram_available_bytes if processor else total
    if mac is not None:
        findings = (*findings, apple.find_apple_gpu(mac, available))
    gpus = [
        replace(gpu, total_bytes=total, free_bytes=available, shares_ram=True)
        if not gpu.total_bytes and _has_no_memory(gpu, arch)
        else gpu
        for group in findings
        for gpu in group.accelerators
    ]
    untold = [gpu for gpu in gpus if not gpu.total_bytes]
    cards = [gpu for gpu in gpus if gpu.total_bytes and not gpu.shares_ram]
    used = cards or [gpu for gpu in gpus if gpu.total_bytes]
    notes = [note for group in findings for note in group.notes]
    for gpu in gpus:
        if gpu in untold:
            notes.append(explain_untold(gpu))
        elif gpu not in used:
            notes.append(f"{gpu.name}, {INSIDE}, is not used: a discrete GPU was found")
    return Platform(
        os=system,
        arch="x86_64" if arch == "AMD64" else arch,
        cores=processor.cores if processor else max(1, mac.logical_cores if mac else 1),
        ram_total_bytes=total,
        ram_available_bytes=available,
        cpu_name=(mac.cpu_name if mac else "") or (processor.name if processor else ""),
        cpu_features=mac.cpu_features
        if mac
        else (processor.features if processor else NO_FEATURES),
        accelerators=tuple(used),
        physical_cores=(mac.performance_cores if mac else 0)
        or (processor.physical_cores if processor else 0),
        shared_memory_bytes=processor.shared_memory_bytes if processor else 0,
        untold=tuple(untold),
        notes=tuple(notes),
    )


def _has_no_memory(gpu: Accelerator, arch: str) -> bool:
    """Tell whether a GPU that does not report its memory uses the machine's RAM.

    A known one does, and on ARM any that is not known for memory of its own: a new chip there.
    """
    is_chip = arch in ("aarch64", "arm64") and not HAS_MEMORY.search(gpu.name)
    return gpu.vendor is Vendor.NVIDIA and (bool(SHARES_RAM.search(gpu.name)) or is_chip)


def describe(machine: Platform) -> str:
    """Summarize a platform in one line for people."""
    name = f" ({machine.cpu_name})" if machine.cpu_name else ""
    plural = "" if machine.cores == 1 else "s"
    parts = [
        f"{machine.os} {machine.arch}",
        f"{machine.cores} core{plural}{name}",
        f"{format_bytes_binary(machine.ram_total_bytes)} RAM",
    ]
    kinds: dict[tuple[str, int, str], int] = {}
    for gpu in machine.accelerators:
        facts = [f"{format_bytes_binary(gpu.total_bytes)}"]
        if gpu.shares_ram:
            facts[0] += " shared with RAM"
        if gpu.compute_capability:
            facts.append("compute {}.{}".format(*gpu.compute_capability))
        if gpu.driver:
            facts.append(f"driver {gpu.driver}")
        kind = (gpu.name, gpu.total_bytes, ", ".join(facts))
        kinds[kind] = kinds.get(kind, 0) + 1
    for (gpu_name, _, text), count in kinds.items():
        times = f"{count} × " if count > 1 else ""
        parts.append(f"{times}{gpu_name} ({text})")
    if not machine.accelerators:
        parts.append("no GPU")
    return ", ".join(parts)


def _wait(name: str, probe: Future[T], limit_s: float, notes: list[str]) -> T | None:
    """Return a probe's result; None, and a note in `notes`, if it failed or hangs."""
    try:
        return probe.result(limit_s)
    except Exception as error:  # a probe must never stop the start of the server
        failed = f"failed: {type(error).__name__}: {error}"
        why = failed if probe.done() else f"did not finish in {limit_s:.0f} s"
        notes.append(f"the {name} probe {why}")
        return None


# -- how busy it is at this moment ----------------------------------------------------------------

USE_QUERY = "index,utilization.gpu,temperature.gpu,power.draw"

GpuUses = dict[int, tuple[float | None, float | None, float | None]]
"""By index: the part of the time that it worked, degrees Celsius, watts."""


def read_cpu_use() -> float:
    """Return the part of all cores that was in use since the last call; the first tells nothing."""
    return round(psutil.cpu_percent(interval=None) / 100, 3)


def read_gpu_uses() -> GpuUses:
    """Ask `nvidia-smi`, in a process of its own; nothing if it is not there or fails."""
    smi = nvidia.find_smi()
    if smi is None:
        return {}
    found = nvidia.ask_smi(smi, f"--query-gpu={USE_QUERY}", timeout_s=PROBE_LIMIT_S)
    return parse_gpu_uses(found.text)


def parse_gpu_uses(text: str) -> GpuUses:
    """Read the lines of `nvidia-smi`, in the order of `USE_QUERY`; `[N/A]` is unknown."""
    found: GpuUses = {}
    for line in text.splitlines():
        index, *cells = (cell.strip() for cell in line.split(","))
        if index.isdecimal() and len(cells) == 3:
            percent, degrees, watts = map(_read_number, cells)
            found[int(index)] = (None if percent is None else percent / 100, degrees, watts)
    return found


def _read_number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
