"""Putting the probes together; the real machine once."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from vllama.base.threads import begin
from vllama.machine.apple import parse_sysctl
from vllama.machine.cpu import Cpu
from vllama.machine.detect import _wait, assemble, describe, detect, free_ram_bytes
from vllama.machine.nvidia import parse_nvidia_smi
from vllama.machine.probe import Findings, run_command
from vllama.machine.types import Platform, Vendor

GIB = 1024**3
CPU = Cpu(
    cores=16,
    physical_cores=8,
    ram_total_bytes=128 * GIB,
    ram_available_bytes=100 * GIB,
    name="AMD EPYC",
    features=frozenset({"avx2"}),
)
M3_MAX_64 = """\
hw.memsize: 68719476736
hw.logicalcpu: 16
hw.perflevel0.physicalcpu: 12
hw.optional.arm64: 1
machdep.cpu.brand_string: Apple M3 Max
sysctl.proc_translated: 0
"""
ROSETTA = M3_MAX_64.replace("translated: 0", "translated: 1")
H100S = "\n".join(
    f"{i}, NVIDIA H100 80GB HBM3, 81559, 81007, 550.54.15, 9.0, GPU-{i}, Disabled" for i in range(8)
)


def linux(smi: str, *more: Findings, arch: str = "x86_64") -> Platform:
    findings = (parse_nvidia_smi(smi), *more)
    return assemble(system="linux", arch=arch, processor=CPU, mac=None, findings=findings)


@pytest.mark.parametrize(
    ("smi", "line"),
    [
        ("", "linux x86_64, 16 cores (AMD EPYC), 128 GiB RAM, no GPU"),
        (
            H100S,
            "linux x86_64, 16 cores (AMD EPYC), 128 GiB RAM, 8 × NVIDIA H100 80GB HBM3 "
            "(79.6 GiB, compute 9.0, driver 550.54.15)",
        ),
        (
            "0, NVIDIA L4, 23034, 100, 550.1, 8.9, a\n1, Tesla T4, 15360, 100, 550.1, 7.5, b",
            "linux x86_64, 16 cores (AMD EPYC), 128 GiB RAM, NVIDIA L4 (22.5 GiB, compute 8.9, "
            "driver 550.1), Tesla T4 (15 GiB, compute 7.5, driver 550.1)",
        ),
    ],
)
def test_describe(smi: str, line: str) -> None:
    assert describe(linux(smi)) == line


@pytest.mark.parametrize(
    ("name", "cell", "arch", "shares"),
    [
        ("NVIDIA GB10", "[N/A]", "aarch64", True),
        ("NVIDIA GB20", "[N/A]", "x86_64", True),
        ("NVIDIA N1X", "[Not Supported]", "aarch64", True),
        ("NVIDIA Thor", "0", "aarch64", True),
        ("Orin (nvgpu)", "[N/A]", "aarch64", True),
        ("NVIDIA Something New", "[N/A]", "aarch64", True),
        ("NVIDIA Something New", "[N/A]", "x86_64", False),
        ("NVIDIA GeForce RTX 4090", "[Unknown Error]", "x86_64", False),
        ("NVIDIA GeForce RTX 4090", "[Unknown Error]", "aarch64", False),
        ("NVIDIA A16-8Q", "[N/A]", "x86_64", False),
        ("NVIDIA A16-8Q", "[N/A]", "aarch64", False),
        ("NVIDIA GH200 480GB", "[Insufficient Permissions]", "aarch64", False),
        ("NVIDIA GB200", "[Unknown Error]", "aarch64", False),
        ("NVIDIA L40S", "0", "aarch64", False),
    ],
)
def test_a_gpu_that_does_not_report_its_memory(name, cell, arch, shares) -> None:
    machine = linux(f"0, {name}, {cell}, {cell}, 580.95.05, 12.1, GPU-d, [N/A]", arch=arch)
    if shares:
        (gpu,) = machine.accelerators
        assert (gpu.total_bytes, gpu.free_bytes, gpu.shares_ram) == (128 * GIB, 100 * GIB, True)
        assert not (machine.notes or machine.untold)
    else:
        assert not machine.accelerators
        assert [gpu.name for gpu in machine.untold] == [name]
        assert machine.notes == (
            f"GPU 0 ({name}) does not report its memory and is not used: check it with nvidia-smi",
        )


def test_a_sick_card_leaves_the_others_alone() -> None:
    sick = "1, NVIDIA L4, [Unknown Error], [Unknown Error], 550.1, 8.9, b, [N/A]"
    half = "2, NVIDIA L4, 23034, [Unknown Error], 550.1, 8.9, c, [N/A]"
    odd = "Unable to determine the device handle for GPU3: 0000:05:00.0: Insufficient Permissions"
    machine = linux("\n".join((H100S.splitlines()[0], sick, half, odd)))
    assert [gpu.index for gpu in machine.accelerators] == [0]
    assert [gpu.index for gpu in machine.untold] == [1, 2]
    assert len(machine.notes) == 3


def test_graphics_in_the_processor_are_not_used_beside_a_card() -> None:
    inside = replace(
        linux("0, NVIDIA L4, 512, 512, 550.1").accelerators[0],
        vendor=Vendor.AMD,
        name="AMD Strix Halo",
        shares_ram=True,
    )
    alone = linux("", Findings(accelerators=(inside,)))
    assert alone.accelerators == (inside,)
    both = linux(H100S.splitlines()[0], Findings(accelerators=(inside,)))
    assert [gpu.vendor for gpu in both.accelerators] == [Vendor.NVIDIA]
    assert both.notes == (
        "AMD Strix Halo, integrated into the processor, is not used: a discrete GPU was found",
    )


def test_mac() -> None:
    machine = assemble(
        system="darwin", arch="arm64", processor=CPU, mac=parse_sysctl(M3_MAX_64), findings=()
    )
    assert [a.vendor for a in machine.accelerators] == [Vendor.APPLE]
    assert machine.cpu_name == "Apple M3 Max"
    translated = assemble(
        system="darwin", arch="x86_64", processor=CPU, mac=parse_sysctl(ROSETTA), findings=()
    )
    assert translated.accelerators == ()
    assert "Rosetta" in translated.notes[0]


def test_nothing_known() -> None:
    machine = assemble(
        system="linux",
        arch="riscv64",
        processor=None,
        mac=None,
        findings=(Findings(notes=("the cpu probe failed",)),),
    )
    assert machine.cores == 1
    assert machine.notes == ("the cpu probe failed",)
    assert describe(machine) == "linux riscv64, 1 core, 0 B RAM, no GPU"


def test_a_probe_that_hangs_is_left_behind() -> None:
    gate = threading.Event()
    notes: list[str] = []
    assert _wait("driver", begin(gate.wait), 0.01, notes) is None
    gate.set()
    assert notes == ["the driver probe did not finish in 0 s"]


def test_a_probe_that_fails_is_a_note() -> None:
    def fail() -> int:
        raise OSError("no such device")

    notes: list[str] = []
    assert _wait("amd", begin(fail), 5.0, notes) is None
    assert notes == ["the amd probe failed: OSError: no such device"]


def test_commands_that_cannot_run() -> None:
    assert "cannot run" in run_command(["/nonexistent/tool"], timeout_s=1).problem
    assert "did not respond" in run_command(["sleep", "30"], timeout_s=0.05).problem
    assert run_command(["sh", "-c", "echo oops >&2; exit 3"], timeout_s=5).text == "oops\n"


def test_this_machine() -> None:
    machine = detect()
    assert machine.cores >= 1
    assert machine.ram_total_bytes >= machine.ram_available_bytes > 0
    assert describe(machine)
    assert 0 < free_ram_bytes() <= machine.ram_total_bytes
