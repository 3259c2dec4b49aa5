"""Macs: the chip, the memory, and the share of it that the GPU may use, from `sysctl`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vllama.machine.probe import Findings, run_command
from vllama.machine.types import Accelerator, Vendor

MIB = 1024**2
GIB = 1024**3
SYSCTL = "/usr/sbin/sysctl"
NAMES = (
    "hw.memsize", "hw.logicalcpu", "hw.perflevel0.physicalcpu", "hw.physicalcpu", "hw.optional",
    "machdep.cpu", "iogpu.wired_limit_mb", "sysctl.proc_translated",
)  # fmt: skip
"""Nodes and leaves; `sysctl` skips names that a Mac does not know, with a warning."""

LARGE_MAC_BYTES = 36 * GIB
"""From this size on, Metal's recommended working set is 3/4 of the memory; below, 2/3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mac:
    """The facts that `sysctl` reports about a Mac. `translated`: this process runs under Rosetta.

    On an Intel Mac, `performance_cores` counts all physical cores.
    """

    cpu_name: str
    cpu_features: frozenset[str]
    logical_cores: int
    performance_cores: int
    ram_bytes: int
    apple_silicon: bool
    translated: bool
    wired_limit_bytes: int

    @property
    def gpu_bytes(self) -> int:
        """The share of memory that the GPU may use; 0 without Apple silicon."""
        if not self.apple_silicon:
            return 0
        if self.wired_limit_bytes:
            return min(self.wired_limit_bytes, self.ram_bytes)
        return share_with_gpu(self.ram_bytes)


def share_with_gpu(ram_bytes: int) -> int:
    """Return the default limit of a Mac's GPU memory, in bytes."""
    return ram_bytes * 3 // 4 if ram_bytes >= LARGE_MAC_BYTES else ram_bytes * 2 // 3


def read_mac() -> tuple[Mac | None, Findings]:
    """Run `sysctl`; the findings contain only notes. Never raises."""
    out = run_command([SYSCTL, *NAMES], timeout_s=3.0)
    if out.problem:
        return None, Findings(notes=(out.problem,))
    return parse_sysctl(out.text), Findings()


def parse_sysctl(text: str) -> Mac:
    """Parse the `name: value` lines of `sysctl`; missing names count as 0."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and re.fullmatch(r"[A-Za-z0-9_.]+", name):
            values[name] = value.strip()
    translated = _number(values, "sysctl.proc_translated") == 1
    name = values.get("machdep.cpu.brand_string", "")
    return Mac(
        cpu_name=name,
        cpu_features=_features(values),
        logical_cores=_number(values, "hw.logicalcpu"),
        performance_cores=_number(values, "hw.perflevel0.physicalcpu")
        or _number(values, "hw.physicalcpu"),
        ram_bytes=_number(values, "hw.memsize"),
        apple_silicon=_number(values, "hw.optional.arm64") == 1 or name.startswith("Apple"),
        translated=translated,
        wired_limit_bytes=_number(values, "iogpu.wired_limit_mb") * MIB,
    )


def find_apple_gpu(mac: Mac, ram_available_bytes: int) -> Findings:
    """Return the GPU of an Apple silicon Mac; it shares the free memory of the machine."""
    if not mac.apple_silicon:
        return Findings()
    if mac.translated:
        return Findings(
            notes=("this Python runs under Rosetta: use an arm64 Python to reach the GPU",)
        )
    gpu = Accelerator(
        vendor=Vendor.APPLE,
        index=0,
        name=f"{mac.cpu_name or 'Apple'} GPU",
        total_bytes=mac.gpu_bytes,
        free_bytes=min(mac.gpu_bytes, ram_available_bytes),
        shares_ram=True,
    )
    return Findings(accelerators=(gpu,))


def _features(values: Mapping[str, str]) -> frozenset[str]:
    names: set[str] = set()
    for key in ("machdep.cpu.features", "machdep.cpu.leaf7_features"):
        names.update(values.get(key, "").lower().split())
    for key, value in values.items():
        if key.startswith("hw.optional.") and value == "1":
            names.add(key.rsplit(".", 1)[1].lower().removeprefix("feat_"))
    return frozenset(names)


def _number(values: Mapping[str, str], name: str) -> int:
    value = values.get(name, "")
    return int(value) if value.isdigit() else 0
