"""Recorded `nvidia-smi` outputs and a stand-in for NVML."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllama.machine.nvidia import (
    MIB,
    detect_nvidia,
    parse_instances,
    parse_nvidia_smi,
    read_nvml,
)
from vllama.machine.types import Vendor

H100 = (
    "0, NVIDIA H100 80GB HBM3, 81559, 81007, 550.54.15, 9.0, "
    "GPU-5f1c1f3c-9b0e-4c55-8a5e-0d3c5f6f1b11, Disabled\n"
)
H200 = (
    "0, NVIDIA H200, 143771, 143160, 570.86.15, 9.0, "
    "GPU-91d2a0f6-2f0e-7c35-a8f6-11aa22bb33cc, Disabled\n"
)
A100_PAIR = (
    "0, NVIDIA A100-SXM4-40GB, 40960, 40536, 535.104.05, 8.0, GPU-aaa, Disabled\n"
    "1, NVIDIA A100-SXM4-40GB, 40960, 1024, 535.104.05, 8.0, GPU-bbb, Enabled\n"
)
CONSUMER = "0, NVIDIA GeForce RTX 4090, 24564, 23010, 560.35.03, 8.9, GPU-ccc, [N/A]\n"
OLD_DRIVER = "0, Tesla K80, 11441, 11438, 450.80.02\n"
GB10 = "0, NVIDIA GB10, [N/A], [N/A], 580.95.05, 12.1, GPU-ddd, [N/A]\n"
MISMATCH = (
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54\n"
)
NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
    "that the latest NVIDIA driver is installed and running.\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (H100, [("NVIDIA H100 80GB HBM3", 81559, 81007, "550.54.15", (9, 0))]),
        (H200, [("NVIDIA H200", 143771, 143160, "570.86.15", (9, 0))]),
        (
            A100_PAIR,
            [
                ("NVIDIA A100-SXM4-40GB", 40960, 40536, "535.104.05", (8, 0)),
                ("NVIDIA A100-SXM4-40GB", 40960, 1024, "535.104.05", (8, 0)),
            ],
        ),
        (CONSUMER, [("NVIDIA GeForce RTX 4090", 24564, 23010, "560.35.03", (8, 9))]),
        (OLD_DRIVER, [("Tesla K80", 11441, 11438, "450.80.02", None)]),
        (GB10, [("NVIDIA GB10", 0, 0, "580.95.05", (12, 1))]),
        ("No devices were found\n", []),
        (MISMATCH, []),
        (NOT_LOADED, []),
        ("", []),
    ],
)
def test_gpus(text: str, expected: list[tuple[Any, ...]]) -> None:
    found = parse_nvidia_smi(text).accelerators
    assert [
        (a.name, a.total_bytes // MIB, a.free_bytes // MIB, a.driver, a.compute_capability)
        for a in found
    ] == expected
    assert [a.index for a in found] == list(range(len(expected)))
    assert all(a.vendor is Vendor.NVIDIA for a in found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (MISMATCH, "reboot"),
        (NOT_LOADED, "driver is not loaded"),
        ("Failed to initialize NVML: Insufficient Permissions\n", "/dev/nvidia"),
        (A100_PAIR, "GPU 1 (NVIDIA A100-SXM4-40GB) is partitioned by MIG"),
        ("something nobody expected\n", 'nvidia-smi printed: "something nobody expected"'),
        (
            "0, NVIDIA A100, [Insufficient Permissions], [N/A], 535.1, 8.0, GPU-a, Enabled",
            "partitioned by MIG",
        ),
    ],
)
def test_notes(text: str, word: str) -> None:
    assert any(word in note for note in parse_nvidia_smi(text).notes)


@pytest.mark.parametrize("text", [H100, CONSUMER, "No devices were found\n", ""])
def test_nothing_to_note(text: str) -> None:
    assert parse_nvidia_smi(text).notes == ()


LISTED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaa)
  MIG 3g.20gb     Device  0: (UUID: MIG-1)
  MIG 1g.5gb      Device  1: (UUID: MIG-2)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbb)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-ccc)
  MIG 1g.10gb+me  Device  0: (UUID: MIG-3)
  MIG 1c.3g.40gb  Device  1: (UUID: MIG-GPU-ccc/7/0)
"""


def test_instances_of_mig_are_listed_with_their_memory() -> None:
    found = parse_instances(LISTED)
    sizes = {i: [(one.uuid, one.total_bytes / MIB / 1024) for one in found[i]] for i in found}
    assert sizes == {
        0: [("MIG-1", 19), ("MIG-2", 4.75)],
        2: [("MIG-3", 9.5), ("MIG-GPU-ccc/7/0", 38)],
    }
    assert parse_instances(LISTED.replace("MIG", "???")) == {}


class FakeError(Exception):
    """Stands for `pynvml.NVMLError`."""


class FakeNvml:
    """Stands for the module `pynvml` on a machine with two GPUs, the second one half broken."""

    NVMLError = FakeError

    def __init__(self, *, init: str | None = None) -> None:
        self.init = init
        self.ended = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init:
            raise FakeError(self.init)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.ended = True

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"550.54.15"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == 2:
            raise FakeError("GPU is lost")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA L4"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if handle == 1:
            raise FakeError("Not Supported")
        return SimpleNamespace(total=24 * 1024**3, free=20 * 1024**3)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return (8, 9)

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=f"00000000:0{handle + 1}:00.0".encode())

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        raise FakeError("Not Supported")


class DividedNvml(FakeNvml):
    """One GPU with two instances, at the second and the third of its seven places."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, place: int) -> int:  # noqa: N802
        if place not in (1, 2):
            raise FakeError("Not Found")
        return 10 * place


def test_instances_of_mig_by_nvml() -> None:
    found = read_nvml(DividedNvml())
    assert found is not None
    size, free = 24 * 1024**3, 20 * 1024**3
    assert found.accelerators[0].instances == (("GPU-10", size, free), ("GPU-20", size, free))


def test_nvml() -> None:
    nvml = FakeNvml()
    found = read_nvml(nvml)
    assert found is not None
    first, second = found.accelerators
    assert (first.name, first.total_bytes, first.free_bytes) == (
        "NVIDIA L4",
        24 * 1024**3,
        20 * 1024**3,
    )
    assert (first.driver, first.compute_capability, first.uuid) == ("550.54.15", (8, 9), "GPU-0")
    assert (first.bus, second.bus) == ("0000:01:00.0", "0000:02:00.0")
    assert second.total_bytes == 0
    assert found.notes == ("cannot use GPU 2: GPU is lost",)
    assert nvml.ended


def test_nvml_mismatch_is_a_note() -> None:
    found = read_nvml(FakeNvml(init="Driver/library version mismatch"))
    assert found is not None
    assert found.accelerators == ()
    assert "reboot" in found.notes[0]


def test_without_the_nvml_library_nvidia_smi_is_asked() -> None:
    assert read_nvml(FakeNvml(init="NVML Shared Library Not Found")) is None


def test_a_loaded_driver_without_tools_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("vllama.machine.nvidia.PLACES", ())
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert detect_nvidia(tmp_path).notes == ()
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n")
    assert "nvidia-ml-py" in detect_nvidia(tmp_path).notes[0]


@pytest.mark.parametrize(
    ("script", "names", "note"),
    [
        (
            "#!/bin/sh\necho '0, NVIDIA L4, 23034, 22500, 550.1, 8.9, GPU-x, [N/A]'\n",
            ["NVIDIA L4"],
            None,
        ),
        ("#!/bin/sh\necho 'No devices were found' >&2\nexit 6\n", [], None),
        (
            "#!/bin/sh\necho 'Driver/library version mismatch'\nexit 18\n",
            [],
            "reboot",
        ),
        (
            '#!/bin/sh\ncase "$1" in *compute_cap*) '
            "echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2;; esac\n"
            "echo '0, Tesla K80, 11441, 11438, 450.80.02'\n",
            ["Tesla K80"],
            None,
        ),
    ],
)
def test_nvidia_smi_is_run(
    script: str,
    names: list[str],
    note: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(script)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    found = detect_nvidia(tmp_path)
    assert [a.name for a in found.accelerators] == names
    assert bool(found.notes) == bool(note)
    assert note is None or note in found.notes[0]
