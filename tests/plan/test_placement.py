"""Which GPUs a model gets, on machines as `nvidia-smi` describes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.facts import CPU, GIB, LLAMA_SERVER_HERE, MIB, bundle, facts
from tests.facts import INFO as SMALL
from vllama.base.errors import NoPlan
from vllama.engines.base import Installation, Mode, Settings
from vllama.engines.llamacpp.llama_server import ENGINE
from vllama.machine.nvidia import parse_nvidia_smi
from vllama.machine.types import MigPart, Platform
from vllama.machine.visible import hide_gpus, show_only
from vllama.models.settings import ModelSettings
from vllama.models.table_kinds import SPREAD
from vllama.plan.choose import draft_plan
from vllama.plan.distribution import list_usable, place
from vllama.plan.report import make_device_rows
from vllama.plan.types import Facts, Need
from vllama.scheduler.memory import MemoryMeter
from vllama.supervise.spec import Endpoint

# index, name, memory.total, memory.free, driver_version, compute_cap, uuid, mig.mode.current
A100 = "{0}, NVIDIA A100-SXM4-40GB, 40960, {1}, 535.104.05, 8.0, GPU-{0}, {2}\n"
ONE = "0, NVIDIA GeForce RTX 4090, 24564, 23010, 560.35.03, 8.9, GPU-0, [N/A]\n"
UNEQUAL = ONE + "1, NVIDIA GeForce RTX 3060, 12288, 12000, 560.35.03, 8.6, GPU-1, [N/A]\n"
TWO_ONE_BUSY = A100.format(0, 1024, "Disabled") + A100.format(1, 40536, "Disabled")
FOUR = "".join(A100.format(index, 40536, "Disabled") for index in range(4))
FOUR_ONE_MIG = A100.format(0, 40536, "Enabled") + "".join(
    A100.format(index, 40000 - index, "Disabled") for index in range(1, 4)
)
EIGHT = "".join(A100.format(index, 40536 - 1000 * index, "Disabled") for index in range(8))


def machine(text: str) -> Platform:
    return replace(CPU, accelerators=parse_nvidia_smi(text).accelerators)


def choose(text: str, weights_bytes: int, gpus: object = None) -> tuple[list[int], list[int]]:
    platform, model = machine(text), replace(SMALL, weights_bytes=int(weights_bytes))
    ours = {f"gpu{gpu.index}": gpu.total_bytes - gpu.free_bytes for gpu in platform.accelerators}
    known = Facts(platform=platform, found=facts().found, gpus=gpus, ours=ours)
    launch = Settings(mode=Mode.CHAT, alias="", context_length=4096, gpu_layers=-1)
    placed = place(known, ENGINE, model, launch, 1, on_gpu=True).settings
    assert sum(placed.gpu_shares) == 31  # with the output
    return list(placed.gpus), list(placed.gpu_shares)


@pytest.mark.parametrize(
    ("text", "weights", "gpus"),
    [
        (ONE, 5 * GIB, [0]),
        (ONE, 50 * GIB, [0]),
        (UNEQUAL, 5 * GIB, [0]),
        (UNEQUAL, 21 * GIB, [0]),
        (UNEQUAL, 30 * GIB, [0, 1]),
        (TWO_ONE_BUSY, 5 * GIB, [1]),
        (TWO_ONE_BUSY, 38 * GIB, [1]),
        (TWO_ONE_BUSY, 39.6 * GIB, [0, 1]),
        (TWO_ONE_BUSY, 60 * GIB, [0, 1]),
        (FOUR, 5 * GIB, [0]),
        (FOUR, 60 * GIB, [0, 1]),
        (FOUR, 110 * GIB, [0, 1, 2]),
        (FOUR, 300 * GIB, [0, 1, 2, 3]),
        (FOUR_ONE_MIG, 5 * GIB, [1]),
        (FOUR_ONE_MIG, 100 * GIB, [1, 2, 3]),
        (EIGHT, 5 * GIB, [0]),
        (EIGHT, 70 * GIB, [0, 1]),
        (EIGHT, 190 * GIB, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_as_few_gpus_as_hold_a_model_the_emptiest_first(text, weights, gpus) -> None:
    assert choose(text, weights)[0] == gpus


@pytest.mark.parametrize(
    ("text", "value", "seen"),
    [
        (FOUR, "2", [2]),
        (FOUR, " 3, 1 ", [1, 3]),
        (FOUR, "GPU-2,GPU-0", [0, 2]),
        (FOUR, "0,7,1", [0]),
        (FOUR, "1,-1,2", [1]),
        (FOUR, "", []),
        (FOUR, "-1", []),
        (FOUR, "none", []),
        (FOUR, "GPU-", []),
        (FOUR, "GPU-9,0", []),
        (FOUR, "1,1,3", [1, 3]),
        (FOUR_ONE_MIG, "MIG-4f0c", [0]),
        (ONE, "GPU-", [0]),
        (ONE, "0", [0]),
    ],
)
def test_gpus_that_the_environment_hides_do_not_count(text, value, seen) -> None:
    whole = machine(text)
    known = hide_gpus(whole, {"CUDA_VISIBLE_DEVICES": value, "HIP_VISIBLE_DEVICES": ""})
    assert [gpu.index for gpu in known.accelerators] == seen
    assert len(known.notes) == len(whole.notes) + (len(seen) < len(whole.accelerators))
    assert hide_gpus(whole, {}) == whole


def test_memory_is_that_of_the_gpus_that_are_seen() -> None:
    known = hide_gpus(machine(FOUR), {"CUDA_VISIBLE_DEVICES": "3,1"})
    made = draft_plan(facts(known), bundle(), SMALL, Need())[0]
    assert set(MemoryMeter(known, lambda pool: 0).needs(made)) <= {"gpu1", "gpu3", "ram"}


def test_each_gpu_holds_a_share_that_fits_into_it() -> None:
    gpus, shares = choose(UNEQUAL, 30 * GIB)
    rows = {gpu.index: gpu for gpu in machine(UNEQUAL).accelerators}
    for index, share in zip(gpus, shares, strict=True):
        assert 30 * GIB * share // 31 + 500 * MIB <= rows[index].free_bytes
    assert shares[0] > 18


@pytest.mark.parametrize(("text", "gpus"), [(UNEQUAL, [0, 1]), (FOUR, [0, 1, 2, 3]), (ONE, [0])])
def test_spread_takes_all(text, gpus) -> None:
    assert choose(text, GIB, SPREAD)[0] == gpus


def plan(text: str, settings: ModelSettings, *, offloads: bool = True, strict: bool = False):
    here = Installation(
        engine="llama-server",
        version="b1",
        executable=LLAMA_SERVER_HERE.executable,
        offloads=offloads,
    )
    known = facts(machine(text), installed=(here,), strict=strict)
    model = replace(bundle(), settings=settings)
    return known, draft_plan(known, model, SMALL, Need())[0]


def test_named_gpus_are_shown_to_the_engine_and_counted() -> None:
    known, made = plan(FOUR, ModelSettings(gpus=(2, 1), origins={"gpus": 'models."m"'}))
    assert made.settings.gpus == (2, 1) and made.settings.gpu_shares == (15, 16)
    assert 'set in [models."m"]: gpus' in made.reasons
    assert any("GPU 2 (15 layers) and GPU 1 (15 layers)" in reason for reason in made.reasons)
    command = ENGINE.launch(
        made.bundle, made.settings, made.installation, Endpoint(port=1), {}
    ).argv  # fmt: skip
    assert command[command.index("--tensor-split") + 1] == "15,16"
    chosen = [gpu for index in (2, 1) for gpu in known.platform.accelerators if gpu.index == index]
    assert show_only(chosen, known.platform.accelerators, {}) == {
        "CUDA_VISIBLE_DEVICES": "GPU-2,GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }  # fmt: skip
    needs = MemoryMeter(known.platform, known.reserve_of).needs(made)
    assert set(needs) == {"gpu1", "gpu2", "ram"}
    assert {row["device"].split(" (")[0] for row in make_device_rows(known, made)} == {
        "GPU 1", "GPU 2", "RAM",
    }  # fmt: skip


def test_one_gpu_of_several_needs_no_split() -> None:
    known, made = plan(EIGHT, ModelSettings())
    assert made.settings.gpus == (0,) and made.settings.gpu_shares == (31,)
    assert MemoryMeter(known.platform, known.reserve_of).needs(made).keys() == {"gpu0", "ram"}


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(NoPlan, match="cannot put 'm:latest' on GPU 7: no such GPU"):
        plan(FOUR, ModelSettings(gpus=(0, 7)))


def test_a_build_without_gpu_support_is_told_and_with_strict_refused() -> None:
    _, made = plan(ONE, ModelSettings(), offloads=False)
    assert "all layers on the CPU: this build of the engine has no GPU support" in made.reasons
    with pytest.raises(NoPlan, match="on a GPU, as required by 'strict': all layers on the CPU"):
        plan(ONE, ModelSettings(), offloads=False, strict=True)
    with pytest.raises(NoPlan, match="as required by 'strict'"):
        plan(ONE, ModelSettings(strict=True), offloads=False)


def test_strict_wants_a_gpu_only_where_there_is_one_or_one_is_named() -> None:
    assert plan("", ModelSettings(strict=True))[1].settings.gpus == ()
    with pytest.raises(NoPlan, match="no GPU was found"):
        plan("", ModelSettings(strict=True, gpus=(0,)))


def test_what_is_divided_by_mig_is_used_only_if_there_is_nothing_else() -> None:
    only = machine(A100.format(0, 40536, "Enabled"))
    assert [gpu.index for gpu in list_usable(only)] == [0]
    assert [gpu.index for gpu in list_usable(machine(FOUR_ONE_MIG))] == [1, 2, 3]


DIVIDED = (
    (MigPart("MIG-a1", 5 * GIB, 4 * GIB), MigPart("MIG-a2", 20 * GIB, 19 * GIB)),
    (MigPart("MIG-b1", 10 * GIB, 9 * GIB),),
)


@pytest.mark.parametrize(
    ("value", "used", "free"),
    [
        (None, "MIG-a2", 19),
        ("MIG-a1", "MIG-a1", 4),
        ("MIG-b1,MIG-a1", "MIG-b1", 9),
        ("1", "MIG-b1", 9),
    ],
)
def test_an_instance_of_mig_is_planned_with_its_own_memory(value, used, free) -> None:
    gpus = machine(A100.format(0, 40536, "Enabled") + A100.format(1, 40536, "Enabled"))
    parts = zip(gpus.accelerators, DIVIDED, strict=True)
    gpus = replace(gpus, accelerators=tuple(replace(gpu, instances=two) for gpu, two in parts))
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    seen = hide_gpus(gpus, environ)
    (gpu,) = list_usable(seen)
    assert (gpu.uuid, gpu.free_bytes) == (used, free * GIB)
    shown = show_only([gpu], seen.accelerators, environ)
    assert shown["CUDA_VISIBLE_DEVICES"] == used
    known = Facts(platform=seen, found=facts().found)
    launch = Settings(mode=Mode.CHAT, alias="", context_length=4096, gpu_layers=-1)
    model = replace(SMALL, weights_bytes=15 * GIB)
    placed = place(known, ENGINE, model, launch, 1, on_gpu=True)
    assert 0 < placed.usable_bytes <= free * GIB
    assert bool(placed.lacking) is (free < 15)
