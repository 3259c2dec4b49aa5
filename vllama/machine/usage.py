"""How busy the machine is at this moment: its CPU, and NVIDIA's GPUs as `nvidia-smi` tells."""

from __future__ import annotations

import psutil

from vllama.machine.nvidia import find_smi
from vllama.machine.probe import run_command

QUERY = "index,utilization.gpu,temperature.gpu,power.draw"
TIMEOUT_S = 3.0

Gpus = dict[int, tuple[float | None, float | None, float | None]]
"""By index: the part of the time that it worked, degrees Celsius, watts."""


def read_cpu() -> float:
    """Return the part of all cores that was in use since the last call; the first tells nothing."""
    return round(psutil.cpu_percent(interval=None) / 100, 3)


def read_gpus() -> Gpus:
    """Ask `nvidia-smi`, in a process of its own; nothing if it is not there or fails."""
    smi = find_smi()
    if smi is None:
        return {}
    argv = [smi, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    return parse_gpus(run_command(argv, timeout_s=TIMEOUT_S).text)


def parse_gpus(text: str) -> Gpus:
    """Read the lines of `nvidia-smi`, in the order of `QUERY`; `[N/A]` is unknown."""
    found: Gpus = {}
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
