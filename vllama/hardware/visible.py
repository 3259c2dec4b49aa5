"""The variables by which a process is shown some of the GPUs only. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllama.hardware.types import Accelerator, Vendor

VARIABLES = {Vendor.NVIDIA: "CUDA_VISIBLE_DEVICES", Vendor.AMD: "HIP_VISIBLE_DEVICES"}


def show_only(gpus: Sequence[Accelerator]) -> Mapping[str, str]:
    """Return the variable that hides all GPUs but these; the first one is the main one.

    NVIDIA's are named by their UUIDs, since CUDA may count them in another order than the driver.
    """
    if not gpus or gpus[0].vendor not in VARIABLES:
        return {}
    is_nvidia = gpus[0].vendor is Vendor.NVIDIA
    names = [(is_nvidia and gpu.uuid) or str(gpu.index) for gpu in gpus]
    return {VARIABLES[gpus[0].vendor]: ",".join(names)}
