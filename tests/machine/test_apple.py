"""Recorded `sysctl` outputs of Macs."""

from __future__ import annotations

import pytest

from vllama.machine.apple import GIB, find_apple_gpu, parse_sysctl
from vllama.machine.types import Vendor

M2_16 = """\
hw.memsize: 17179869184
hw.logicalcpu: 8
hw.perflevel0.physicalcpu: 4
hw.physicalcpu: 8
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_SME: 0
hw.optional.arm64: 1
hw.optional.neon: 1
machdep.cpu.cores_per_package: 8
machdep.cpu.core_count: 8
machdep.cpu.logical_per_package: 8
machdep.cpu.thread_count: 8
machdep.cpu.brand_string: Apple M2
iogpu.wired_limit_mb: 0
sysctl.proc_translated: 0
"""
M3_MAX_64 = M2_16.replace("17179869184", str(64 * GIB)).replace("Apple M2", "Apple M3 Max")
RAISED = M3_MAX_64.replace("wired_limit_mb: 0", "wired_limit_mb: 57344")
ROSETTA = """\
hw.memsize: 17179869184
hw.logicalcpu: 8
hw.optional.floatingpoint: 1
hw.optional.arm64: 1
machdep.cpu.brand_string: VirtualApple @ 2.50GHz
sysctl.proc_translated: 1
"""
INTEL = """\
hw.memsize: 34359738368
hw.logicalcpu: 12
hw.physicalcpu: 6
sysctl: unknown oid 'hw.perflevel0.physicalcpu'
hw.optional.floatingpoint: 1
hw.optional.avx2_0: 1
hw.optional.avx512f: 0
machdep.cpu.vendor: GenuineIntel
machdep.cpu.brand_string: Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz
machdep.cpu.features: FPU VME SSE SSE2 AVX1.0
machdep.cpu.leaf7_features: RDWRFSGS AVX2 BMI2
sysctl: unknown oid 'iogpu.wired_limit_mb'
sysctl: unknown oid 'sysctl.proc_translated'
"""


@pytest.mark.parametrize(
    ("text", "name", "cores", "performance_cores", "gpu_bytes"),
    [
        (M2_16, "Apple M2", 8, 4, 16 * GIB * 2 // 3),
        (M3_MAX_64, "Apple M3 Max", 8, 4, 48 * GIB),
        (RAISED, "Apple M3 Max", 8, 4, 56 * GIB),
        (INTEL, "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", 12, 6, 0),
        ("", "", 0, 0, 0),
    ],
)
def test_sysctl(text: str, name: str, cores: int, performance_cores: int, gpu_bytes: int) -> None:
    mac = parse_sysctl(text)
    assert (mac.cpu_name, mac.gpu_bytes) == (name, gpu_bytes)
    assert (mac.logical_cores, mac.performance_cores) == (cores, performance_cores)


def test_features() -> None:
    assert {"dotprod", "bf16", "neon"} <= parse_sysctl(M2_16).cpu_features
    assert "sme" not in parse_sysctl(M2_16).cpu_features
    assert {"avx2", "sse2"} <= parse_sysctl(INTEL).cpu_features


def test_gpu_is_free_as_far_as_memory_is() -> None:
    (gpu,) = find_apple_gpu(parse_sysctl(M3_MAX_64), 20 * GIB).accelerators
    assert (gpu.vendor, gpu.name) == (Vendor.APPLE, "Apple M3 Max GPU")
    assert (gpu.total_bytes, gpu.free_bytes) == (48 * GIB, 20 * GIB)
    assert find_apple_gpu(parse_sysctl(M3_MAX_64), 60 * GIB).accelerators[0].free_bytes == (
        48 * GIB
    )


def test_no_gpu_on_intel_nor_under_rosetta() -> None:
    assert find_apple_gpu(parse_sysctl(INTEL), GIB).accelerators == ()
    found = find_apple_gpu(parse_sysctl(ROSETTA), GIB)
    assert found.accelerators == ()
    assert "arm64 Python" in found.notes[0]
