"""Which engine serves which model on which GPU, and why not another: a table of machines."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import CPU, GIB, INFO, LLAMA_SERVER_HERE, VLLM_HERE, bundle, missing
from vllama.base.errors import BadModelFile, EngineMissing
from vllama.config.engine_settings import EngineSettings
from vllama.doctor import engines
from vllama.engines.base import DiscoveredEngines, Installation
from vllama.engines.install import make_offers
from vllama.engines.llamacpp.llama_server import ENGINE as LLAMA_SERVER
from vllama.engines.recipe import CUDA_13, MachineKind
from vllama.engines.sglang import ENGINE as SGLANG
from vllama.engines.transformers_serve import ENGINE as TRANSFORMERS
from vllama.engines.vllm.adapter import ENGINE as VLLM
from vllama.machine.types import Accelerator, Platform, Vendor
from vllama.models.types import Format
from vllama.plan.choose import make_plan
from vllama.plan.types import Facts, Need
from vllama.server.preflight import suppose_machine

KNOWN = {engine.name: engine for engine in (VLLM, SGLANG, TRANSFORMERS, LLAMA_SERVER)}
VLLM_33 = replace(VLLM_HERE, version="0.33.0")
ON_CPU = replace(VLLM_HERE, version="0.32.0", offloads=False)
HERE = Installation(engine="transformers", version="5.23", executable=Path("/t"), offloads=True)
LLAMA = replace(LLAMA_SERVER_HERE, offloads=True)
FOLDER = bundle(format=Format.SAFETENSORS, hub_id="org/m", path=Path("/m"))
KINDS = ("BF16", "AWQ", "FP8", "MODELOPT", "MXFP4")  # MODELOPT: NVFP4


def card(
    name: str,
    capability: tuple[int, int] | None = None,
    driver: str | None = "580.95.05",
    *,
    vendor: Vendor = Vendor.NVIDIA,
    **changes,
) -> Accelerator:
    values = {"index": 0, "total_bytes": 24 * GIB, "free_bytes": 23 * GIB} | changes
    return Accelerator(
        vendor=vendor, name=name, driver=driver, compute_capability=capability, **values
    )


def machine(*cards: Accelerator, arch: str = "x86_64") -> Platform:
    numbered = tuple(replace(gpu, index=index) for index, gpu in enumerate(cards))
    ram = {"ram_total_bytes": 64 * GIB, "ram_available_bytes": 60 * GIB}
    return replace(CPU, arch=arch, accelerators=numbered, **ram)


def known(platform: Platform, *installed: Installation, **settings) -> Facts:
    here = {one.engine: one for one in installed}
    lost = {name: missing(engine) for name, engine in KNOWN.items() if name not in here}
    found = DiscoveredEngines(engines=KNOWN, installations=here, missing=lost)
    return Facts(platform=platform, found=found, settings=EngineSettings(**settings))


P40, T4 = card("Tesla P40", (6, 1)), card("Tesla T4", (7, 5))
RTX_3090, RTX_4090 = card("GeForce RTX 3090", (8, 6)), card("GeForce RTX 4090", (8, 9))
A6000 = card("RTX A6000", (8, 6), total_bytes=48 * GIB, free_bytes=47 * GIB)
MI300 = card("Instinct MI300X", driver=None, vendor=Vendor.AMD)
RX_7900 = card("Radeon RX 7900 XTX", driver=None, vendor=Vendor.AMD)
ARC = card("Arc B580", driver=None, vendor=Vendor.INTEL)
GB10 = card("NVIDIA GB10", (12, 1), shares_ram=True, total_bytes=64 * GIB, free_bytes=60 * GIB)
NOT_4 = ("BF16", "AWQ", "FP8", "MODELOPT")
OLD = "needs driver 580, but {} is installed (update it)"


@pytest.mark.parametrize(
    ("cards", "arch", "served", "why"),
    [
        ((card("Tesla K80", None, "470.256.02"),), "x86_64", (), OLD.format("470.256.02")),
        ((card("GeForce GTX 970", (5, 2)),), "x86_64", (), "capability 5.2 (7.5 is needed)"),
        ((card("GeForce GTX 1080 Ti", (6, 1)),), "x86_64", (), "the GeForce GTX 1080 Ti, which"),
        ((P40,), "x86_64", (), "the Tesla P40, which has compute capability 6.1 (7.5 is needed)"),
        ((P40, P40), "x86_64", (), "vLLM cannot: this build is for GPUs"),
        ((card("Tesla V100", (7, 0), "535.104.05"),), "x86_64", (), "7.0 (7.5 is needed)"),
        ((T4,), "x86_64", NOT_4, "for MXFP4 it does not use the Tesla T4"),
        ((card("GeForce RTX 2060", (7, 5)),), "x86_64", NOT_4, "7.5 (8.0 is needed)"),
        ((card("GeForce RTX 2060", (7, 5), "550.54"),), "x86_64", (), OLD.format("550.54")),
        ((card("GeForce RTX 3060", (8, 6)),), "x86_64", KINDS, ""),
        ((card("GeForce RTX 3060", (8, 6), "535.183.01"),), "x86_64", (), OLD.format("535.183.01")),
        ((RTX_4090,), "x86_64", KINDS, ""),
        ((replace(RTX_4090, driver="570.86.10"),), "x86_64", (), OLD.format("570.86.10")),
        ((replace(RTX_4090, driver=None, compute_capability=None),), "x86_64", KINDS, ""),
        ((card("GeForce RTX 5090", (12, 0)),), "x86_64", KINDS, ""),
        ((card("GeForce RTX 5090", (12, 0), "575.57"),), "x86_64", (), OLD.format("575.57")),
        ((card("A100", (8, 0)),), "x86_64", KINDS, ""),
        ((card("H100", (9, 0), "590.1"),), "x86_64", KINDS, ""),
        ((card("B200", (10, 0)),), "x86_64", KINDS, ""),
        ((GB10,), "aarch64", KINDS, ""),
        ((card("Orin", (8, 7), "540.4.0", shares_ram=True),), "aarch64", (), OLD.format("540.4.0")),
        ((card("Orin", (8, 7), shares_ram=True),), "aarch64", KINDS, ""),
        ((card("NVIDIA Thor", (11, 0), shares_ram=True),), "aarch64", KINDS, ""),
        ((MI300,), "x86_64", (), "Instinct MI300X: its packages are for NVIDIA GPUs"),
        ((RX_7900,), "x86_64", (), "Radeon RX 7900 XTX: its packages are for NVIDIA GPUs"),
        ((ARC,), "x86_64", (), "Arc B580: its packages are for NVIDIA GPUs"),
        ((P40, RTX_3090), "x86_64", KINDS, "it does not use the Tesla P40, which"),
        ((RTX_4090, RX_7900), "x86_64", KINDS, "it does not use the Radeon RX 7900 XTX: its"),
        ((T4, P40), "x86_64", NOT_4, "it does not use the Tesla P40, which"),
    ],
)
def test_vllm_serves_what_it_can_and_another_engine_the_rest(cards, arch, served, why):
    facts = known(machine(*cards, arch=arch), VLLM_33, HERE, LLAMA)
    plans = {kind: make_plan(facts, FOLDER, replace(INFO, quant=kind), Need()) for kind in KINDS}
    assert {kind for kind, plan in plans.items() if plan.engine == "vllm"} == set(served)
    assert {plan.engine for plan in plans.values()} <= {"vllm", "transformers"}
    assert any(why in plan.reasons[0] for plan in plans.values())
    gguf = make_plan(facts, bundle(), INFO, Need())
    assert gguf.engine == "llama-server" and "does not use" not in gguf.reasons[0]


def test_models_that_need_bfloat16_are_for_gpus_that_have_it():
    gemma = replace(INFO, architecture="gemma3_text", quant="BF16")
    assert (
        make_plan(known(machine(RTX_3090), VLLM_33, HERE), FOLDER, gemma, Need()).engine == "vllm"
    )
    other = make_plan(known(machine(T4), VLLM_33, HERE), FOLDER, gemma, Need())
    assert other.engine == "transformers" and other.memory.on_gpu


@pytest.mark.parametrize(
    ("build", "platform", "uses"),
    [
        (VLLM_33, machine(RTX_4090, P40), (0,)),
        # whoever has no other engine may have what makes up for an old driver
        (VLLM_33, machine(replace(RTX_4090, driver="570.86.10")), (0,)),
        # builds of others are for whatever they were made for
        (replace(VLLM_33, version="0.33.0+cu129"), machine(replace(T4, driver="535.1")), (0,)),
        (replace(VLLM_33, version="0.33.1.dev2+g1a2b3c.rocm72"), machine(MI300), (0,)),
        (replace(VLLM_33, version="0.14.0"), machine(card("Tesla V100", (7, 0))), (0,)),
        (ON_CPU, machine(P40), ()),
        (HERE, machine(P40), ()),
        (HERE, machine(P40, RTX_3090), (1,)),
    ],
)
def test_the_gpus_that_a_build_uses(build, platform, uses):
    plan = make_plan(known(platform, build), FOLDER, INFO, Need())
    assert plan.settings.gpus == uses
    assert plan.memory.on_gpu is bool(uses)
    assert bool(plan.settings.gpu_layers) is bool(uses)


@pytest.mark.parametrize(
    ("installed", "error", "words", "hint"),
    [
        ((VLLM_33, LLAMA), BadModelFile, "the Tesla P40, which has", "vllama convert org/m"),
        ((LLAMA,), EngineMissing, "no engine for it is installed", "it does not use the Tesla P40"),
        ((LLAMA,), EngineMissing, "no engine for it is installed", "vllama convert org/m"),
    ],
)
def test_an_error_names_the_reason_and_the_way(installed, error, words, hint):
    with pytest.raises(error, match=words) as caught:
        make_plan(known(machine(P40), *installed), FOLDER, INFO, Need())
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("platform", "kind", "instead"),
    [
        (machine(RTX_4090), MachineKind.NVIDIA, ""),
        (machine(RTX_4090, P40), MachineKind.NVIDIA, ""),
        (machine(P40), MachineKind.CPU, "it does not use the Tesla P40, which has"),
        (machine(replace(T4, driver="550.54")), MachineKind.CPU, "it needs driver 580, but 550.54"),
        (machine(RX_7900), MachineKind.CPU, "its packages are for NVIDIA GPUs"),
        (machine(), MachineKind.CPU, ""),
    ],
)
def test_what_is_installed_suits_the_gpus(tmp_path, platform, kind, instead):
    offer = make_offers(VLLM, platform, tmp_path)[0]
    assert kind in offer.wheels.on and instead in offer.instead
    assert bool(offer.instead) is bool(instead)
    if kind is MachineKind.CPU and instead:
        with pytest.raises(EngineMissing, match=instead.split(",", maxsplit=1)[0]):
            make_offers(SGLANG, platform, tmp_path)


def test_sglang_does_not_fill_the_ram_that_a_gpu_shares():
    assert SGLANG.preference(machine(RTX_4090))[0] > 0
    assert SGLANG.preference(machine(GB10))[0] == 0


def test_equal_sentences_are_said_once():
    _, why = CUDA_13.see(machine(P40, P40, T4))
    assert why.count("Tesla P40") == 1 and "T4" not in why


def test_doctor_does_not_advise_a_build_for_a_gpu_that_none_is_for():
    texts = [finding.text for finding in engines.check_choice(known(machine(P40), ON_CPU))]
    assert "it does not use the Tesla P40, which has compute" in texts[0]
    assert not any("no GPU support" in text for text in texts)
    texts = [finding.text for finding in engines.check_choice(known(machine(RTX_4090), ON_CPU))]
    assert "GeForce RTX 4090 is not used" in texts[-1]


@pytest.mark.parametrize(("name", "uses"), [("Tesla P40", False), ("RTX 3060", True)])
def test_a_machine_that_is_not_here_gets_the_build_for_its_gpu(name, uses):
    there = suppose_machine(known(machine()), [name], "64GB")
    plan = make_plan(there, FOLDER, INFO, Need())
    assert plan.engine == "vllm" and plan.memory.on_gpu is uses
    assert ("it does not use the Tesla P40" in plan.reasons[0]) is not uses
