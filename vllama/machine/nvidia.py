"""NVIDIA GPUs, from NVML if the `nvidia-ml-py` package is installed, or else from `nvidia-smi`.

All GPUs of the machine are reported; `visible` knows `CUDA_VISIBLE_DEVICES`.
"""

from __future__ import annotations

import importlib
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllama.machine.probe import Findings, Output, run_command
from vllama.machine.types import Accelerator, MigPart, Vendor

MIB = 1024**2
SHORT_QUERY = "index,name,memory.total,memory.free,driver_version"
QUERY = f"{SHORT_QUERY},compute_cap,uuid,mig.mode.current,pci.bus_id"
"""The first is for drivers before 470, which do not know `compute_cap`."""

PLACES = (
    "/usr/bin/nvidia-smi",
    "/usr/lib/wsl/lib/nvidia-smi",
    "/opt/bin/nvidia-smi",
    "/usr/local/nvidia/bin/nvidia-smi",
    "C:\\Windows\\System32\\nvidia-smi.exe",
)
SMI_TIMEOUT_S = 12.0
"""Without persistence mode the driver first wakes every GPU, which takes a second or more each."""

_FAILURES = (
    (
        re.compile(r"Driver/library version mismatch", re.I),
        "the NVIDIA driver was updated while loaded (driver/library version mismatch): "
        "reboot, or reload the nvidia kernel modules",
    ),
    (
        re.compile(r"couldn't communicate with the NVIDIA driver|Driver Not Loaded", re.I),
        "nvidia-smi is installed but the NVIDIA driver is not loaded",
    ),
    (
        re.compile(r"Insufficient Permissions", re.I),
        "no permission to use the NVIDIA devices: check the permissions of /dev/nvidia*",
    ),
)
_NO_DEVICES = re.compile(r"no devices were found", re.I)
_UNKNOWN_FIELD = re.compile(r"is not a valid field to query", re.I)


def detect_nvidia(root: Path = Path("/")) -> Findings:
    """Find the NVIDIA GPUs of this machine; never raises."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        nvml = None
    if nvml is not None and (findings := read_nvml(nvml)) is not None:
        return findings
    if smi := find_smi():
        return _run_smi(smi)
    if (root / "proc/driver/nvidia/version").exists():
        return Findings(
            notes=(
                "an NVIDIA driver is loaded, but neither nvidia-smi nor the Python package "
                "nvidia-ml-py was found: install one of them",
            )
        )
    return Findings()


def find_smi() -> str | None:
    """Return the path of `nvidia-smi`, None if there is none."""
    return shutil.which("nvidia-smi") or next((p for p in PLACES if Path(p).is_file()), None)


def ask_smi(smi: str, query: str, *, timeout_s: float = SMI_TIMEOUT_S) -> Output:
    """Ask `nvidia-smi` for lines of cells, such as `--query-gpu=index,name`; never raises."""
    return run_command([smi, query, "--format=csv,noheader,nounits"], timeout_s=timeout_s)


def _run_smi(smi: str) -> Findings:
    out = ask_smi(smi, f"--query-gpu={QUERY}")
    if _UNKNOWN_FIELD.search(out.text):
        out = ask_smi(smi, f"--query-gpu={SHORT_QUERY}")
    if out.problem:
        return Findings(notes=(out.problem,))
    found = parse_nvidia_smi(out.text)
    if any(gpu.is_divided for gpu in found.accelerators):
        parts = parse_instances(run_command([smi, "-L"], timeout_s=SMI_TIMEOUT_S).text)
        gpus = (replace(gpu, instances=parts.get(gpu.index, ())) for gpu in found.accelerators)
        found = replace(found, accelerators=tuple(gpus))
    return found


def parse_instances(text: str) -> dict[int, tuple[MigPart, ...]]:
    """Parse `nvidia-smi -L`: the instances of MIG by the index of their GPU.

    The memory is that of the profile's name, less a twentieth: a `1g.5gb` has 4.75 GiB (MIG User
    Guide, "A100 MIG Profiles"). What is free of it is not told.
    """
    found: dict[int, tuple[MigPart, ...]] = {}
    index = 0
    for line in text.splitlines():
        if match := re.match(r"GPU (\d+):", line):
            index = int(match[1])
        elif match := re.match(r"\s+MIG \S*?\.(\d+)gb\S*\s.*\(UUID: (MIG-[^)]+)\)", line):
            size = int(match[1]) * 1024 * MIB * 19 // 20
            found[index] = (*found.get(index, ()), MigPart(match[2], size, size))
    return found


def parse_nvidia_smi(text: str) -> Findings:
    """Parse `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`, or its error message.

    The columns are in the order of `QUERY`, and the last ones may be missing. A value in brackets
    (`[N/A]`) counts as unknown.
    """
    accelerators: list[Accelerator] = []
    notes: list[str] = []
    for line in text.splitlines():
        cells = [_parse_cell(cell) for cell in line.split(",")]
        if not line.strip() or _NO_DEVICES.search(line):
            continue
        if len(cells) < 5 or cells[0] is None or not cells[0].isdigit():
            notes.append(f'nvidia-smi printed: "{line.strip()}"')
            continue
        accelerators.append(_make_accelerator(cells + [None] * (9 - len(cells)), notes))
    known = [note for pattern, note in _FAILURES if pattern.search(text)]
    if known and not accelerators:
        return Findings(notes=(known[0],))
    return Findings(accelerators=tuple(accelerators), notes=tuple(notes))


def _make_accelerator(cells: list[str | None], notes: list[str]) -> Accelerator:
    index, name, total, free, driver, capability, uuid, mig, bus = cells[:9]
    is_divided = (mig or "").lower() == "enabled"
    if is_divided:
        notes.append(_make_mig_note(f"GPU {index} ({name or 'NVIDIA GPU'})"))
    return Accelerator(
        vendor=Vendor.NVIDIA,
        index=int(index or 0),
        name=name or "NVIDIA GPU",
        # what is free is not known without both
        total_bytes=_parse_mebibytes(total) if free else 0,
        free_bytes=_parse_mebibytes(free),
        driver=driver,
        compute_capability=_parse_capability(capability),
        uuid=uuid,
        is_divided=is_divided,
        bus=(bus or "").lower()[-12:],  # its domain has eight digits
    )


def read_nvml(nvml: Any) -> Findings | None:
    """Query NVML through the `pynvml` module; None if this machine does not have its library."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        text = str(error)
        for pattern, note in _FAILURES:
            if pattern.search(text):
                return Findings(notes=(note,))
        return None
    notes: list[str] = []
    try:
        driver = _decode(nvml.nvmlSystemGetDriverVersion())
        count = nvml.nvmlDeviceGetCount()
        accelerators = [_read_device(nvml, index, driver, notes) for index in range(count)]
    except nvml.NVMLError as error:
        notes.append(f"NVML failed: {error}")
        accelerators = []
    finally:
        _query(nvml, nvml.nvmlShutdown)
    return Findings(accelerators=tuple(a for a in accelerators if a), notes=tuple(notes))


def _read_device(nvml: Any, index: int, driver: str, notes: list[str]) -> Accelerator | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        notes.append(f"cannot use GPU {index}: {error}")
        return None
    name = _decode(_query(nvml, nvml.nvmlDeviceGetName, handle) or "NVIDIA GPU")
    memory = _query(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _query(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    uuid = _query(nvml, nvml.nvmlDeviceGetUUID, handle)
    pci = _query(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    mig = _query(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mig and mig[0]:
        notes.append(_make_mig_note(f"GPU {index} ({name})"))
    return Accelerator(
        vendor=Vendor.NVIDIA,
        index=index,
        name=name,
        instances=_read_instances(nvml, handle) if mig and mig[0] else (),
        total_bytes=int(memory.total) if memory is not None else 0,
        free_bytes=int(memory.free) if memory is not None else 0,
        driver=driver,
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        uuid=_decode(uuid) if uuid else None,
        is_divided=bool(mig and mig[0]),
        bus=_decode(pci.busId).lower()[-12:] if pci else "",
    )


def _read_instances(nvml: Any, gpu: Any) -> tuple[MigPart, ...]:
    """Return the instances of a GPU; those that are not there fail one by one."""
    count = _query(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0
    parts = (_query(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, i) for i in range(count))
    found = []
    for part in filter(None, parts):
        uuid = _query(nvml, nvml.nvmlDeviceGetUUID, part)
        memory = _query(nvml, nvml.nvmlDeviceGetMemoryInfo, part)
        if uuid and memory is not None:
            found.append(MigPart(_decode(uuid), int(memory.total), int(memory.free)))
    return tuple(found)


def list_gpu_processes() -> dict[int, dict[int, int]]:
    """Return the bytes that each process holds, by pid and index of the GPU; never raises.

    The result is empty without a driver, and inside a container that cannot see the host's pids.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # the package, the library or the driver is missing
        return _list_smi_processes()
    held: dict[int, dict[int, int]] = {}
    for index in range(_query(nvml, nvml.nvmlDeviceGetCount) or 0):
        handle = _query(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
        for row in _query(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ():
            held.setdefault(row.pid, {})[index] = int(row.usedGpuMemory or 0)
    _query(nvml, nvml.nvmlShutdown)
    return held


def _list_smi_processes() -> dict[int, dict[int, int]]:
    smi = find_smi()
    if smi is None:
        return {}
    gpus = ask_smi(smi, "--query-gpu=uuid,index")
    apps = ask_smi(smi, "--query-compute-apps=gpu_uuid,pid,used_gpu_memory")
    return parse_processes(gpus.text, apps.text)


def parse_processes(gpus: str, apps: str) -> dict[int, dict[int, int]]:
    """Parse `uuid, index` and `gpu_uuid, pid, MiB` lines; see `list_gpu_processes`."""
    rows = [[cell.strip() for cell in line.split(",")] for line in gpus.splitlines()]
    index = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    held: dict[int, dict[int, int]] = {}
    for line in apps.splitlines():
        uuid, *rest = (cell.strip() for cell in line.split(","))
        if uuid in index and len(rest) == 2 and rest[0].isdigit():
            held.setdefault(int(rest[0]), {})[index[uuid]] = _parse_mebibytes(rest[1])
    return held


def _query(nvml: Any, function: Any, *args: Any) -> Any:
    """Call a function of NVML; return None if this device or driver does not support it."""
    try:
        return function(*args)
    except nvml.NVMLError:
        return None


def _make_mig_note(label: str) -> str:
    return (
        f"{label} is partitioned by MIG: using its largest instance, or the one in "
        "CUDA_VISIBLE_DEVICES"
    )


def _parse_cell(cell: str) -> str | None:
    text = cell.strip()
    return None if not text or (text.startswith("[") and text.endswith("]")) else text


def _parse_mebibytes(cell: str | None) -> int:
    match = re.match(r"[0-9]+", cell or "")
    return int(match.group()) * MIB if match else 0


def _parse_capability(cell: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"([0-9]+)\.([0-9]+)", cell or "")
    return (int(match.group(1)), int(match.group(2))) if match else None


def _decode(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


Version = tuple[int, int]


def find_driver_cuda() -> Version | None:
    """Return the newest CUDA version that the installed driver supports; None if unknown."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        number = int(nvml.nvmlSystemGetCudaDriverVersion())
        nvml.nvmlShutdown()
        return number // 1000, number % 1000 // 10
    except Exception:  # the package, the library or the driver is missing
        smi = find_smi()
        return parse_banner(run_command([smi], timeout_s=SMI_TIMEOUT_S).text) if smi else None


def parse_banner(text: str) -> Version | None:
    """Parse the banner of `nvidia-smi`, which contains `CUDA Version: 12.4`."""
    match = re.search(r"CUDA (?:\w+ )?Version:\s*(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def find_torch_cuda(sites: list[Path]) -> Version | None:
    """Return the CUDA version that PyTorch in these package folders was built for; None for CPUs.

    Reads `torch/version.py`, which has `cuda: Optional[str] = '12.8'`, without importing it.
    """
    for site in sites:
        try:
            text = (site / "torch" / "version.py").read_text()
        except OSError:
            continue
        match = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", text, re.MULTILINE)
        return (int(match[1]), int(match[2])) if match else None
    return None


def can_run(built_for: Version, driver: Version) -> bool:
    """Return whether a driver can run a build for a CUDA version: the major versions decide.

    NVIDIA calls this minor version compatibility (CUDA 11 and later).
    """
    return built_for[0] <= driver[0]
