"""One name for one GPU: what engines list, what they are shown, and what they say of it after."""

from dataclasses import replace

import pytest

from tests.facts import CPU
from vllama.engines.devices import Device, LoadReport, name_devices, parse_devices, tell_memory
from vllama.machine.types import Accelerator, Vendor, explain_untold
from vllama.machine.visible import hide_gpus, show_only
from vllama.supervise.spec import Fault

GIB = 1024**3
LISTED = """ggml_vulkan: Found 2 Vulkan devices:
Available devices:
  CPU: AMD EPYC (24105 MiB, 24105 MiB free)
  Vulkan0: AMD Radeon 780M Graphics (RADV PHOENIX) (16384 MiB, 15000 MiB free)
  MTL0: Apple M2
"""


def test_a_list_of_devices():
    assert parse_devices(LISTED) == (
        Device("Vulkan0", "AMD Radeon 780M Graphics (RADV PHOENIX)", 16 * GIB, 15000 * 1024**2),
        Device("MTL0", "Apple M2", 0, 0),
    )
    assert parse_devices("Available devices:\n  (none)\n") == ()


def gpu(index, name="NVIDIA GeForce RTX 3090", gib=24, bus="", vendor=Vendor.NVIDIA, **more):
    return Accelerator(
        vendor=vendor, index=index, name=name, total_bytes=gib * GIB, free_bytes=gib * GIB,
        bus=bus, **more,
    )  # fmt: skip


def device(number, title="NVIDIA GeForce RTX 3090", gib=24, kind="Vulkan"):
    return Device(f"{kind}{number}", title, gib * GIB, gib * GIB)


ARC = {"name": "Intel GPU 0x56a0", "vendor": Vendor.INTEL}
A770 = "Intel(R) Arc(tm) A770 Graphics (DG2)"


@pytest.mark.parametrize(
    ("devices", "sizes"),
    [
        ([device(0, A770, 16)], [16]),
        ([device(0, "Intel(R) UHD Graphics 770 (ADL-S GT1)", 32), device(1, A770, 16)], [16]),
        ([device(0, "Intel(R) Arc(tm) Graphics (MTL)", 32)], []),
        ([device(0)], []),
        ([device(0, A770, 0)], []),
        ([], []),
    ],
)
def test_an_engine_tells_the_memory_that_the_system_does_not(devices, sizes):
    untold = gpu(0, gib=0, **ARC)
    machine = replace(CPU, untold=(untold,), notes=(explain_untold(untold), "another"))
    known = tell_memory(machine, devices)
    assert [one.total_bytes // GIB for one in known.accelerators] == sizes
    assert (len(known.untold), len(known.notes)) == ((0, 1) if sizes else (1, 2))


RX = {"name": "AMD GPU 0x744c", "vendor": Vendor.AMD}
RADV = "AMD Radeon RX 7900 XTX (RADV NAVI31)"


@pytest.mark.parametrize(
    ("devices", "gpus", "chosen", "names"),
    [
        # one device leaves no choice; CUDA's and ROCm's are shown by variables
        ([device(0)], [gpu(0)], [0], ()),
        ([device(0, kind="CUDA"), device(1, kind="CUDA")], [gpu(0), gpu(1)], [1], ()),
        ([device(0, kind="ROCm"), device(1, kind="ROCm")], [gpu(0, **RX), gpu(1, **RX)], [1], ()),
        # by name, whatever the order
        ([device(0), device(1, "NVIDIA GeForce GTX 1660", 6)],
         [gpu(0, "NVIDIA GeForce GTX 1660", 6), gpu(1)], [0, 1], ("Vulkan1", "Vulkan0")),
        # the processor's graphics beside a card are not the card
        ([device(0, "Intel(R) UHD Graphics 770", 32), device(1)], [gpu(0)], [0], ("Vulkan1",)),
        # sysfs knows no names: by size
        ([device(0, RADV, 24), device(1, "AMD Radeon 780M", 8)],
         [gpu(0, gib=8, **RX), gpu(1, gib=24, **RX)], [1], ("Vulkan0",)),
        # equal cards: in the order of the bus, which need not be that of the indices
        ([device(0), device(1)], [gpu(0, bus="0000:41:00.0"), gpu(1, bus="0000:01:00.0")],
         [0], ("Vulkan1",)),
        ([device(0), device(1)], [gpu(0), gpu(1)], [1, 0], ("Vulkan1", "Vulkan0")),
        # CUDA_VISIBLE_DEVICES hides the first from this server, and not from Vulkan
        ([device(0), device(1)], [gpu(1)], [1], ("Vulkan1",)),
        # one that has no match: the engine decides
        ([device(0), device(1, RADV)], [gpu(0), gpu(1)], [0, 1], ()),
        ([device(0), device(1)], [], [0], ()),
        ([device(0), device(1)], [gpu(0), gpu(1)], [], ()),
    ],
)  # fmt: skip
def test_a_gpu_has_one_name(devices, gpus, chosen, names):
    assert name_devices(devices, gpus, chosen) == names


NVIDIA = [gpu(0, uuid="GPU-a"), gpu(1, uuid="GPU-b"), gpu(2, uuid="GPU-c")]
AMD = [gpu(index, **RX) for index in range(3)]
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
MIG = [gpu(0, uuid="GPU-a", is_divided=True)]
INSTANCE = [gpu(0, uuid="MIG-a", is_divided=True)]


@pytest.mark.parametrize(
    ("chosen", "seen", "environ", "shown"),
    [
        (NVIDIA[:1], NVIDIA[:1], {}, {}),
        (NVIDIA[1:2], NVIDIA, {}, {"CUDA_VISIBLE_DEVICES": "GPU-b", **BY_BUS}),
        # all of several too, in the order of their shares
        ([NVIDIA[1], NVIDIA[0]], NVIDIA[:2], {},
         {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a", **BY_BUS}),
        # the only one that the user's variable leaves, which counted by the bus here
        (NVIDIA[1:2], NVIDIA[1:2], {"CUDA_VISIBLE_DEVICES": "1"},
         {"CUDA_VISIBLE_DEVICES": "GPU-b", **BY_BUS}),
        ([gpu(1)], [gpu(0), gpu(1)], {}, {"CUDA_VISIBLE_DEVICES": "1", **BY_BUS}),
        (MIG, MIG, {"CUDA_VISIBLE_DEVICES": "MIG-1"}, BY_BUS),
        (MIG, MIG, {"CUDA_VISIBLE_DEVICES": "MIG-1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {}),
        # one that is known is named, also if the user's variable has several
        (INSTANCE, INSTANCE, {}, {"CUDA_VISIBLE_DEVICES": "MIG-a", **BY_BUS}),
        (INSTANCE, INSTANCE, {"CUDA_VISIBLE_DEVICES": "MIG-b,MIG-a"},
         {"CUDA_VISIBLE_DEVICES": "MIG-a", **BY_BUS}),
        ([AMD[2], AMD[0]], AMD, {}, {"HIP_VISIBLE_DEVICES": "2,0"}),
        # HIP counts what ROCR_VISIBLE_DEVICES leaves
        (AMD[2:], AMD[1:], {"ROCR_VISIBLE_DEVICES": "1,2"}, {"HIP_VISIBLE_DEVICES": "1"}),
        ([gpu(0, vendor=Vendor.INTEL)], [gpu(0, vendor=Vendor.INTEL)] * 2, {}, {}),
        ([], [], {"CUDA_VISIBLE_DEVICES": ""}, {}),
    ],
)  # fmt: skip
def test_what_shows_a_process_its_gpus(chosen, seen, environ, shown):
    assert show_only(chosen, seen, environ) == shown


def test_rocr_hides_gpus():
    machine = hide_gpus(replace(CPU, accelerators=AMD), {"ROCR_VISIBLE_DEVICES": "1,2"})
    assert [one.index for one in machine.accelerators] == [1, 2]


REMOTE = [
    gpu(1024 + n, f"RPC{n} ({server})", bus=server, vendor=Vendor.REMOTE)
    for n, server in enumerate(("a:1", "b:1"))
]
BUSES = [gpu(0, bus="0000:01:00.0"), gpu(1, bus="0000:02:00.0")]


@pytest.mark.parametrize(
    ("report", "gpu_layers", "gpus", "cause", "fault"),
    [
        ({"gpu_bytes": {"CUDA0": GIB}, "layers": 31, "of_layers": 31}, -1, BUSES[:1], None, None),
        ({"gpu_bytes": {"CUDA0": GIB}, "layers": 10, "of_layers": 31}, 10, BUSES[:1], None, None),
        ({"gpu_bytes": {"CUDA0": GIB}, "layers": 31, "of_layers": 31}, 99, [], None, None),
        ({"gpu_bytes": {"GPU 0": GIB}}, -1, BUSES[:1], None, None),
        ({"gpu_bytes": {"CUDA0": GIB}, "layers": 12, "of_layers": 31}, -1, BUSES[:1],
         "12 of 31 layers are on the GPU, not 31", None),
        # `--device none` says this, too
        ({"ram_bytes": GIB, "layers": 31, "of_layers": 31}, -1, BUSES[:1],
         "finds no usable GPU: check the driver", Fault.DEVICE),
        ({"problem": "failed to initialize CUDA: unknown error"}, -1, BUSES[:1],
         "(failed to initialize CUDA: unknown error): check the driver", Fault.DEVICE),
        ({"problem": "driver version is insufficient for runtime"}, -1, BUSES[:1],
         "update the driver", Fault.DEVICE),
        ({"gpu_bytes": {"Vulkan1": GIB}, "buses": {"Vulkan1": "0000:02:00.0"}}, -1, BUSES[1:],
         None, None),
        ({"gpu_bytes": {"Vulkan1": GIB}, "buses": {"Vulkan1": "0000:02:00.0"}}, -1, BUSES[:1],
         "Vulkan1 is at 0000:02:00.0, not 0000:01:00.0", None),
        ({"gpu_bytes": {"Vulkan1": GIB}, "buses": {"Vulkan1": "0000:02:00.0"}}, -1, [gpu(0)],
         None, None),
        ({"gpu_bytes": {"RPC0[a:1]": GIB, "RPC0[b:1]": GIB}}, -1, REMOTE, None, None),
        ({"gpu_bytes": {"RPC0[a:1]": GIB, "CUDA0": GIB}}, -1, REMOTE,
         "does not show that it uses RPC1 (b:1)", Fault.REMOTE),
        ({}, -1, REMOTE, "does not show that it uses RPC0 (a:1)", Fault.REMOTE),
    ],
)  # fmt: skip
def test_what_is_not_as_planned(report, gpu_layers, gpus, cause, fault):
    found = LoadReport(**report).find_trouble(gpu_layers, gpus)
    assert (found and found.fault) == fault
    assert (found is None) if cause is None else (cause in found.cause)


def test_a_report_by_pool_and_in_words():
    report = LoadReport(
        gpu_bytes={"Vulkan1": 3 * GIB, "Vulkan0": GIB}, ram_bytes=GIB // 2, layers=12, of_layers=31
    )
    assert report.by_pool(BUSES) == {"gpu0": 3 * GIB, "gpu1": GIB}
    assert report.text == (
        "12 of 31 layers on the GPU: 3.0 GiB on Vulkan1, 1.0 GiB on Vulkan0, 512 MiB in RAM"
    )
    assert report.by_pool([]) == {}
