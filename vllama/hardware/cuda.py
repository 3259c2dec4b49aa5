"""Which CUDA the NVIDIA driver can run, and which one a package was built for."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path

from vllama.hardware.nvidia import PLACES, SMI_TIMEOUT_S
from vllama.hardware.probe import run_command

Version = tuple[int, int]


def driver_cuda() -> Version | None:
    """Return the newest CUDA that the installed driver supports; None if it cannot be told."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        number = int(nvml.nvmlSystemGetCudaDriverVersion())
        nvml.nvmlShutdown()
        return number // 1000, number % 1000 // 10
    except Exception:  # the package, the library or the driver is not there
        smi = shutil.which("nvidia-smi") or next((p for p in PLACES if Path(p).is_file()), None)
        return parse_banner(run_command([smi], timeout_s=SMI_TIMEOUT_S).text) if smi else None


def parse_banner(text: str) -> Version | None:
    """Read the banner of `nvidia-smi`, in which stands `CUDA Version: 12.4`."""
    match = re.search(r"CUDA (?:\w+ )?Version:\s*(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def torch_cuda(sites: list[Path]) -> Version | None:
    """Return the CUDA that PyTorch in these package folders was built for; nothing is imported.

    It stands in `torch/version.py`, as `cuda: Optional[str] = '12.8'`; None in a CPU build.
    """
    for site in sites:
        try:
            text = (site / "torch" / "version.py").read_text()
        except OSError:
            continue
        match = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", text, re.MULTILINE)
        return (int(match[1]), int(match[2])) if match else None
    return None


def runs(built_for: Version, driver: Version) -> bool:
    """Tell whether a driver runs what was built for a CUDA: within a major version any does.

    NVIDIA calls it minor version compatibility (CUDA 11 and later).
    """
    return built_for[0] <= driver[0]
