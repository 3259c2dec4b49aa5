"""Facts of this machine; nothing is decided here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Vendor(StrEnum):
    """Makers of accelerators that detection knows."""

    NVIDIA = "nvidia"
    AMD = "amd"
    APPLE = "apple"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU. Memory in bytes; on Apple silicon it is the part of RAM the GPU may use.

    `compute_capability` is NVIDIA's, as (major, minor).
    """

    vendor: Vendor
    index: int
    name: str
    total_bytes: int
    free_bytes: int
    driver: str | None = None
    compute_capability: tuple[int, int] | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What this machine is. `os` is "linux", "darwin" or "windows"; `arch` as `uname -m` says.

    `cores` are those this process may use (affinity and cgroup quota counted in), `physical_cores`
    those of them that compute side by side: no hyperthreads, no efficiency cores; 0: not known.
    `notes` tell what detection could not find out, one sentence each.
    """

    os: str
    arch: str
    cores: int
    ram_total_bytes: int
    ram_available_bytes: int
    cpu_name: str = ""
    cpu_features: frozenset[str] = frozenset()
    accelerators: tuple[Accelerator, ...] = ()
    physical_cores: int = 0
    notes: tuple[str, ...] = ()

    def of(self, vendor: Vendor) -> tuple[Accelerator, ...]:
        """Return the accelerators of one vendor."""
        return tuple(acc for acc in self.accelerators if acc.vendor is vendor)
