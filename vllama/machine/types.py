"""The facts of a machine; no decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

FIRST_REMOTE = 1024  # index of a model's first remote device; those of GPUs are lower


class Vendor(StrEnum):
    """The vendors of accelerators: of several, the first is used, and REMOTE, of other machines."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"
    REMOTE = "remote"


class MigPart(NamedTuple):
    """A part of a GPU that is divided by MIG; bytes."""

    uuid: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU. Memory is in bytes; on Apple silicon it is the share of RAM that the GPU may use.

    `compute_capability` is NVIDIA's, as (major, minor). `is_divided`: into `instances` by MIG, so
    that no process can use the whole of it, and each at most one of them; `visible` puts the memory
    and the UUID of that one here. `shares_ram`: its memory is the machine's RAM. `bus` is its PCI
    address as the kernel and llama.cpp write it ("0000:01:00.0"), host:port of a remote one, or "".
    """

    vendor: Vendor
    index: int
    name: str
    total_bytes: int
    free_bytes: int
    driver: str | None = None
    compute_capability: tuple[int, int] | None = None
    uuid: str | None = None
    is_divided: bool = False
    instances: tuple[MigPart, ...] = ()
    shares_ram: bool = False
    bus: str = ""

    @property
    def is_remote(self) -> bool:
        """True for a device of another machine."""
        return self.vendor is Vendor.REMOTE


def explain_untold(gpu: Accelerator) -> str:
    """Return why a GPU is not used whose memory nobody tells."""
    check = "check it with nvidia-smi"
    if gpu.vendor is Vendor.INTEL:
        check = "llama.cpp's Vulkan build knows it, once it is installed"
    return f"GPU {gpu.index} ({gpu.name}) does not report its memory and is not used: {check}"


def name_pool(gpu: int) -> str:
    """Return the name of the memory pool of the GPU with this index; that of RAM is `ram`."""
    return f"rpc{gpu - FIRST_REMOTE}" if gpu >= FIRST_REMOTE else f"gpu{gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The facts of a machine. `os` is "linux", "darwin" or "windows"; `arch` is as in `uname -m`.

    `cores` counts the logical cores that this process may use, within affinity and cgroup quota.
    `physical_cores` counts each pair of hyperthreads once, and no efficiency cores; 0 if unknown.
    `shared_memory_bytes` are free in /dev/shm, of which a container has 64 MB.
    `notes` has a sentence for each fact that could not be detected, and for each GPU that is not
    used; `untold` has those of them that do not report their memory.
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
    shared_memory_bytes: int = 0
    untold: tuple[Accelerator, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, vendor: Vendor) -> tuple[Accelerator, ...]:
        """Return the accelerators of one vendor."""
        return tuple(acc for acc in self.accelerators if acc.vendor is vendor)
