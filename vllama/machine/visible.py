"""The variables by which a process is shown some of the GPUs only. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from vllama.machine.types import Accelerator, Platform, Vendor

VARIABLES = {Vendor.NVIDIA: "CUDA_VISIBLE_DEVICES", Vendor.AMD: "HIP_VISIBLE_DEVICES"}
ROCR = "ROCR_VISIBLE_DEVICES"
"""What it hides of AMD's, HIP does not count."""
HIDING = {*VARIABLES.values(), ROCR}


def select_visible(gpus: Sequence[Accelerator], value: str) -> tuple[Accelerator, ...]:
    """Return the GPUs that a process sees with this value of its vendor's variable.

    The list ends at the first entry that names no GPU, so "" and "-1" hide all (CUDA C++
    Programming Guide, "CUDA Environment Variables"). A UUID may be abbreviated. Indices count as
    the driver's. An instance of MIG that the driver does not list stands for all divided GPUs.
    """
    shown: list[Accelerator] = []
    for entry in map(str.strip, value.split(",")):
        if entry.startswith("MIG-"):
            found = [gpu for gpu in map(partial(_take_instance, uuid=entry), gpus) if gpu][:1]
            found = found or [gpu for gpu in gpus if gpu.is_divided]
        elif entry.startswith("GPU-"):
            found = [gpu for gpu in gpus if (gpu.uuid or "").startswith(entry)]
            found = found if len(found) == 1 else []
        else:
            found = [gpu for gpu in gpus if entry == str(gpu.index)]
        if not found:
            break
        shown += found
    return tuple(sorted(dict.fromkeys(shown), key=lambda gpu: gpu.index))


def _take_instance(gpu: Accelerator, uuid: str = "") -> Accelerator | None:
    """Return a divided GPU as its largest instance whose UUID begins so; None without one."""
    fitting = [each for each in gpu.instances if each.uuid.startswith(uuid)]
    if not fitting:
        return None
    best = max(fitting, key=lambda each: each.total_bytes)
    return replace(
        gpu, uuid=best.uuid, total_bytes=best.total_bytes, free_bytes=best.free_bytes, instances=()
    )


def hide_gpus(machine: Platform, environ: Mapping[str, str]) -> Platform:
    """Return a machine without the GPUs that a process with this environment does not see."""
    seen = machine.accelerators
    notes = list(machine.notes)
    for vendor, name in (*VARIABLES.items(), (Vendor.AMD, ROCR)):
        gpus = tuple(gpu for gpu in seen if gpu.vendor is vendor)
        if (value := environ.get(name)) is None:
            continue
        shown = {gpu.index: gpu for gpu in select_visible(gpus, value)}
        if unseen := len(gpus) - len(shown):
            notes.append(f"{name}={value!r} hides {unseen} of {len(gpus)} GPUs")
        seen = tuple(
            shown.get(gpu.index, gpu)
            for gpu in seen
            if gpu.vendor is not vendor or gpu.index in shown
        )
    seen = tuple(_take_instance(gpu) or gpu for gpu in seen)
    return replace(machine, accelerators=seen, notes=tuple(notes))


def show_only(
    gpus: Sequence[Accelerator], seen: Sequence[Accelerator], environ: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the variables that show a process `gpus` of those `seen`, in this order.

    NVIDIA's are named by their UUIDs, or by numbers that count as in `nvidia-smi`; AMD's by
    numbers, all that HIP documents (ROCm, "GPU isolation techniques"). The only GPU needs no name,
    and the user's own variables stay where they name unknown instances of a divided one.
    """
    vendor = gpus[0].vendor if gpus else None
    is_instance = any((gpu.uuid or "").startswith("MIG-") for gpu in gpus)
    is_only = len(seen) == 1 and not environ.keys() & HIDING
    if vendor not in VARIABLES or (is_only and not is_instance):
        return {}
    names = [seen.index(gpu) if ROCR in environ else gpu.index for gpu in gpus]
    shown = {VARIABLES[vendor]: ",".join(map(str, names))}
    if vendor is Vendor.NVIDIA:  # by itself CUDA counts the fastest GPU first
        shown[VARIABLES[vendor]] = ",".join(gpu.uuid or str(gpu.index) for gpu in gpus)
        shown["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    divided = any(gpu.is_divided for gpu in gpus) and not is_instance
    return {name: text for name, text in shown.items() if not (divided and name in environ)}
