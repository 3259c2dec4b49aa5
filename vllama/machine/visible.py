"""The variables by which a process is shown some of the GPUs only. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vllama.machine.types import Accelerator, Platform, Vendor

VARIABLES = {Vendor.NVIDIA: "CUDA_VISIBLE_DEVICES", Vendor.AMD: "HIP_VISIBLE_DEVICES"}


def select_visible(gpus: Sequence[Accelerator], value: str) -> tuple[Accelerator, ...]:
    """Return the GPUs that a process sees with this value of its vendor's variable.

    The list ends at the first entry that names no GPU, so "" and "-1" hide all (CUDA C++
    Programming Guide, "CUDA Environment Variables"). A UUID may be abbreviated. Indices count as
    the driver's, and an instance of MIG stands for all GPUs that are divided.
    """
    shown: list[Accelerator] = []
    for entry in map(str.strip, value.split(",")):
        if entry.startswith("MIG-"):
            found = [gpu for gpu in gpus if gpu.is_divided]
        elif entry.startswith("GPU-"):
            found = [gpu for gpu in gpus if (gpu.uuid or "").startswith(entry)]
            found = found if len(found) == 1 else []
        else:
            found = [gpu for gpu in gpus if entry == str(gpu.index)]
        if not found:
            break
        shown += found
    return tuple(gpu for gpu in gpus if gpu in shown)


def hide_gpus(machine: Platform, environ: Mapping[str, str]) -> Platform:
    """Return a machine without the GPUs that a process with this environment does not see."""
    hidden: set[Accelerator] = set()
    notes = list(machine.notes)
    for vendor, name in VARIABLES.items():
        gpus, value = machine.of(vendor), environ.get(name)
        if value is not None and (unseen := set(gpus) - set(select_visible(gpus, value))):
            notes.append(f"{name}={value!r} hides {len(unseen)} of {len(gpus)} GPUs")
            hidden |= unseen
    accelerators = tuple(gpu for gpu in machine.accelerators if gpu not in hidden)
    return replace(machine, accelerators=accelerators, notes=tuple(notes))


def show_only(gpus: Sequence[Accelerator]) -> Mapping[str, str]:
    """Return the variable that hides all GPUs but these; the first one is the main one.

    NVIDIA's are named by their UUIDs, since CUDA may count them in another order than the driver.
    """
    if not gpus or gpus[0].vendor not in VARIABLES:
        return {}
    is_nvidia = gpus[0].vendor is Vendor.NVIDIA
    names = [(is_nvidia and gpu.uuid) or str(gpu.index) for gpu in gpus]
    return {VARIABLES[gpus[0].vendor]: ",".join(names)}
