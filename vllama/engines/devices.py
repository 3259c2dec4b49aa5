"""The GPUs as an engine names them, and what it reports of them after a load. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vllama.base.units import format_amount
from vllama.machine.types import Accelerator, Platform, explain_untold, name_pool
from vllama.supervise.spec import Diagnosis, Fault

MIB, GIB = 1024**2, 1024**3
LISTED = re.compile(r"(?m)^\s+(?!CPU|BLAS)(\w+): (.+?)(?: \((\d+) MiB, (\d+) MiB free\))?$")
BY_VARIABLE = re.compile(r"CUDA|ROCm|MTL|Metal|MUSA")
"""Devices that an engine is shown by a variable (`machine.visible`), or has one of."""
VENDOR = re.compile(r"(?P<nvidia>NVIDIA|GeForce)|(?P<amd>AMD|Radeon|RADV)|(?P<intel>Intel)")
"""Names of vendors (`machine.types.Vendor`) in a device's description."""
INSIDE_INTEL = re.compile(r"Intel(?!.*(\b[AB]\d{2,3}|Flex|Max))")
"""Graphics inside a processor, whose memory is the RAM; cards have such a name."""
NO_DEVICE = ("none",)  # otherwise a build for GPUs has buffers there also without a layer
REMEDY = (
    "check the driver (vllama doctor; NVIDIA after a suspend: sudo rmmod nvidia_uvm && sudo "
    "modprobe nvidia_uvm)"
)
"""The second half is from docs/gpu.md of Ollama."""


class Device(NamedTuple):
    """A device in an engine's own list, such as Vulkan0; memory is in bytes, 0 if not told."""

    name: str
    title: str
    total_bytes: int
    free_bytes: int


def parse_devices(listed: str) -> tuple[Device, ...]:
    """Read the output of `llama-server --list-devices` ("  Vulkan0: NAME (M MiB, N MiB free)")."""
    return tuple(
        Device(name, title, int(total or 0) * MIB, int(free or 0) * MIB)
        for name, title, total, free in LISTED.findall(listed.partition("vailable devices:")[2])
    )


def tell_memory(machine: Platform, devices: Sequence[Device]) -> Platform:
    """Return a machine with the GPUs whose memory the system does not tell, but an engine does.

    i915 of Linux does not tell that of Intel's Arc, Vulkan does. A device matches by its vendor.
    """
    left = [one for one in devices if one.total_bytes and not INSIDE_INTEL.search(one.title)]
    told, untold = list[Accelerator](), list[Accelerator]()
    for gpu in machine.untold:
        brands = ((VENDOR.search(one.title), one) for one in left)
        found = next(
            (one for brand, one in brands if brand and brand.lastgroup == gpu.vendor), None
        )
        if found is None:
            untold.append(gpu)
        else:
            left.remove(found)
            told.append(replace(gpu, total_bytes=found.total_bytes, free_bytes=found.free_bytes))
    notes = [note for note in machine.notes if not any(note == explain_untold(x) for x in told)]
    gpus = (*machine.accelerators, *told)
    return replace(machine, accelerators=gpus, untold=tuple(untold), notes=tuple(notes))


def name_devices(
    devices: Sequence[Device], gpus: Sequence[Accelerator], chosen: Sequence[int]
) -> tuple[str, ...]:
    """Return the engine's names of the GPUs with the indices `chosen`, in their order.

    Empty where a variable shows the engine its GPUs, it has only one, or some have no match. A
    device matches by vendor, then name, then size. Equal cards match in the order of their bus
    addresses, in which Vulkan's loader sorts them; the load tells whether that was right
    (`LoadReport.find_trouble`).
    """
    left = {place: one for place, one in enumerate(devices) if not BY_VARIABLE.match(one.name)}
    if len(left) < 2:
        return ()
    all_known, names = len(gpus) >= len(left), dict[int, str]()
    for number, gpu in enumerate(sorted(gpus, key=lambda gpu: (gpu.bus, gpu.index))):
        wanted = number if all_known else gpu.index  # some are hidden: as the driver counts
        ranks = []
        for place, one in left.items():
            apart = abs(one.total_bytes - gpu.total_bytes) // GIB
            if not (brand := VENDOR.search(one.title)) or brand.lastgroup == gpu.vendor:
                ranks.append((gpu.name not in one.title, apart, abs(place - wanted), place))
        if ranks:
            names[gpu.index] = left.pop(min(ranks)[-1]).name
    return tuple(names[index] for index in chosen) if names.keys() >= set(chosen) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Placement of a model, in its engine's own words.

    `gpu_bytes` are on each GPU by the engine's name of it, in its order, `buses` their addresses
    ("" if not told); "RPC0[10.0.0.5:50052]" is a remote one. `layers` of `of_layers` are on GPUs,
    None where they are not counted.
    `problem` is the line that says why no GPU is used.
    """

    gpu_bytes: Mapping[str, int] = field(default_factory=dict)
    ram_bytes: int = 0
    layers: int | None = None
    of_layers: int = 0
    buses: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def vram_bytes(self) -> int:
        """Bytes on GPUs."""
        return sum(self.gpu_bytes.values())

    @property
    def text(self) -> str:
        """The report in one line."""
        parts = [f"{format_amount(size)} on {name}" for name, size in self.gpu_bytes.items()]
        parts += [f"{format_amount(self.ram_bytes)} in RAM"] if self.ram_bytes else []
        counted = self.layers is not None and self.gpu_bytes
        count = f"{self.layers} of {self.of_layers} layers on the GPU: " if counted else ""
        return count + ", ".join(parts)

    def by_pool(self, gpus: Sequence[Accelerator]) -> dict[str, int]:
        """Return the bytes on `gpus`, in the order that the engine was given, by pool."""
        pools = (name_pool(gpu.index) for gpu in gpus)
        here = (size for name, size in self.gpu_bytes.items() if "[" not in name)
        return dict(zip(pools, here, strict=False))

    def find_trouble(self, gpu_layers: int, gpus: Sequence[Accelerator]) -> Diagnosis | None:
        """Return how this differs from a plan with so many layers (-1: all) on `gpus`.

        With `Fault.DEVICE`, no GPU is used at all; with `Fault.REMOTE`, not all remote ones.
        """
        for gpu in (gpu for gpu in gpus if gpu.is_remote):
            if not any(name.endswith(f"[{gpu.bus}]") for name in self.gpu_bytes):
                cause = f"the engine's log does not show that it uses {gpu.name}"
                return Diagnosis(cause=cause, fault=Fault.REMOTE)
        if not self.vram_bytes:
            remedy = REMEDY if "insufficient" not in self.problem else "update the driver"
            why = f" ({self.problem})" if self.problem else ""
            cause = f"the engine finds no usable GPU{why}: {remedy}; the next load checks again"
            return Diagnosis(cause=cause, fault=Fault.DEVICE)
        planned = self.of_layers if gpu_layers < 0 else min(gpu_layers, self.of_layers)
        if self.layers is not None and self.layers < planned:
            count = f"{self.layers} of {self.of_layers} layers are on the GPU, not {planned}"
            return Diagnosis(cause=f"{count}, so it is slower: see the engine's log")
        known = {gpu.bus for gpu in gpus if not gpu.is_remote}
        for name, bus in self.buses.items():
            if name in self.gpu_bytes and bus and known and known.isdisjoint(("", bus)):
                hint = "make one GPU visible to the engine (GGML_VK_VISIBLE_DEVICES)"
                return Diagnosis(cause=f"{name} is at {bus}, not {' or '.join(known)}; {hint}")
        return None
