"""Drivers, CUDA and memory, on recorded output and made-up machines."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.doctor.facts import CPU, GIB, GPU, H100, statuses
from vllama.doctor import machine
from vllama.doctor.check import Finding, Severity, ok, warning
from vllama.engines.base import DiscoveredEngines, Installation
from vllama.engines.registry import load_engines
from vllama.machine.nvidia import can_run, find_torch_cuda, parse_banner
from vllama.machine.types import Platform, Vendor

INSIDE = "AMD Phoenix, integrated into the processor, is not used: it is no gain"


def pci(folder: Path, *devices: tuple[str, str]) -> Path:
    for number, (vendor, class_) in enumerate(devices):
        device = folder / f"0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(class_ + "\n")
    return folder


@pytest.mark.parametrize(
    ("platform", "devices", "told"),
    [
        (CPU, [], ok("no GPU: models run on the CPU")),
        (CPU, [("0x1234", "0x030000")], ok("no GPU: models run on the CPU")),
        (CPU, [("0x10de", "0x040300")], ok("no GPU: models run on the CPU")),
        (GPU, [("0x10de", "0x030200")], ok("H100: 80 GiB, driver 570.86, up to CUDA 12.8")),
        (replace(CPU, notes=("nvidia-smi did not respond",)), [],
         warning("nvidia-smi did not respond")),
        (replace(CPU, notes=(INSIDE,)), [], ok(INSIDE)),
        (replace(CPU, notes=("sick",), untold=GPU.accelerators), [("0x10de", "0x030200")],
         warning("sick")),
    ],
)  # fmt: skip
def test_driver(tmp_path: Path, platform: Platform, devices, told: Finding) -> None:
    assert list(machine.driver(platform, (12, 8), pci=pci(tmp_path / "pci", *devices))) == [told]


def test_a_gpu_without_a_driver(tmp_path: Path) -> None:
    bus = pci(tmp_path, ("0x10de", "0x030200"), ("0x10de", "0x030000"))
    (found,) = machine.driver(CPU, None, pci=bus)
    assert found.status is Severity.FAILED and found.text.startswith(
        "2 NVIDIA GPUs in this machine"
    )


RADEON = replace(CPU, accelerators=(replace(H100, vendor=Vendor.AMD, name="Radeon"),))
ARC = replace(CPU, accelerators=(replace(H100, vendor=Vendor.INTEL, name="Arc"),))


@pytest.mark.parametrize(
    ("platform", "file", "status"),
    [
        (CPU, "usr/share/vulkan/icd.d/radeon_icd.x86_64.json", Severity.SKIPPED),
        (GPU, "usr/share/vulkan/icd.d/radeon_icd.x86_64.json", Severity.SKIPPED),
        (RADEON, "usr/share/vulkan/icd.d/radeon_icd.x86_64.json", Severity.OK),
        (RADEON, "etc/vulkan/icd.d/amd_icd64.json", Severity.OK),
        (RADEON, "usr/share/vulkan/icd.d/nvidia_icd.json", Severity.WARNING),
        (ARC, "usr/share/vulkan/icd.d/intel_icd.x86_64.json", Severity.OK),
        (ARC, "usr/share/vulkan/icd.d/radeon_icd.x86_64.json", Severity.WARNING),
        (RADEON, "elsewhere/radeon_icd.x86_64.json", Severity.WARNING),
    ],
)
def test_the_vulkan_driver_of_a_gpu(
    tmp_path: Path, platform: Platform, file: str, status: Severity
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    (found,) = machine.vulkan(platform, root=tmp_path)
    assert found.status is status


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("| NVIDIA-SMI 570.86.15   Driver Version: 570.86.15   CUDA Version: 12.8     |", (12, 8)),
        ("| NVIDIA-SMI 590.1  KMD Version: 590.1   CUDA UMD Version: 13.1 |", (13, 1)),
        ("| NVIDIA-SMI 570.86.15   Driver Version: 570.86.15   CUDA Version: N/A      |", None),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", None),
    ],
)
def test_the_banner_of_nvidia_smi(text: str, version: tuple[int, int] | None) -> None:
    assert parse_banner(text) == version


TORCH = "__version__ = '2.9.1+cu128'\ncuda: Optional[str] = {}\nhip: Optional[str] = None\n"


@pytest.mark.parametrize(
    ("written", "version"),
    [("'12.8'", (12, 8)), ('"13.0"', (13, 0)), ("None", None)],
)
def test_the_cuda_of_a_torch(tmp_path: Path, written: str, version) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(TORCH.format(written))
    assert find_torch_cuda([tmp_path / "none", tmp_path]) == version
    assert find_torch_cuda([]) is None


@pytest.mark.parametrize(
    ("built", "driver", "good"),
    [((12, 8), (12, 4), True), ((12, 8), (13, 0), True), ((13, 0), (12, 8), False)],
)
def test_what_a_driver_runs(built, driver, good: bool) -> None:
    assert can_run(built, driver) is good


@pytest.mark.parametrize(
    ("platform", "torch", "driver", "status", "text"),
    [
        (CPU, "'12.8'", (12, 8), "skipped", "no NVIDIA GPU"),
        (GPU, "'12.8'", (12, 4), "ok", "built for CUDA 12.8; the driver supports CUDA 12.4"),
        (GPU, "'13.0'", (12, 8), "failed", "the driver supports only CUDA 12.8"),
        (GPU, "'13.0'", None, "warning", "is unknown"),
        (GPU, "None", (12, 8), "warning", "PyTorch without CUDA"),
        (GPU, None, (12, 8), "skipped", "no engine with packages for CUDA"),
    ],
)
def test_cuda_against_wheels(
    tmp_path: Path, platform: Platform, torch, driver, status: str, text: str
) -> None:
    site = tmp_path / "lib/python3.12/site-packages"
    site.mkdir(parents=True)
    if torch:
        (site / "torch").mkdir()
        (site / "torch/version.py").write_text(TORCH.format(torch))
    name = sorted(load_engines())[0]
    here = Installation(engine=name, version="1", python=tmp_path / "bin/python")
    found = DiscoveredEngines(engines=load_engines(), installations={name: here})
    (told,) = machine.cuda_against_wheels(platform, found, driver)
    assert (told.status, text in told.text) == (status, True), told


def test_memory_is_told_with_who_holds_it() -> None:
    real = replace(CPU, ram_total_bytes=psutil.virtual_memory().total)
    (told,) = machine.ram(real)
    assert "RAM is free" in told.text
    (told,) = machine.ram(replace(CPU, ram_total_bytes=10**16))
    assert told.status is Severity.WARNING


def test_gpu_memory_and_its_holders() -> None:
    (told,) = machine.gpu_memory(GPU, dict)
    assert told == ok("79 GiB of 80 GiB of GPU 0 is free")
    full = replace(GPU, accelerators=(replace(H100, free_bytes=GIB),))
    me = os.getpid()
    (told,) = machine.gpu_memory(full, lambda: {me: {0: 70 * GIB}, 2**22: {1: GIB}})
    assert told.status is Severity.WARNING
    assert f"(pid {me}) 70 GiB" in told.text and str(2**22) not in told.text
    (told,) = machine.gpu_memory(full, dict)
    assert "processes that are not visible here" in told.text
    assert statuses(machine.gpu_memory(CPU, pytest.fail)) == ["skipped"]
