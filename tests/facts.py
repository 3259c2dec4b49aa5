"""Recorded facts that several tests decide on: platforms, a model, engines."""

from pathlib import Path

from vllama.chat.request import LoadOptions
from vllama.config.engine_settings import EngineSettings
from vllama.engines.base import DiscoveredEngines, Installation, Missing
from vllama.engines.llamacpp.llama_cpp_python import ENGINE as LLAMA_CPP
from vllama.engines.llamacpp.llama_server import ENGINE as LLAMA_SERVER
from vllama.engines.vllm.adapter import ENGINE as VLLM
from vllama.machine.types import Accelerator, Platform, Vendor
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.types import Facts, Need

GIB = 1024**3
MIB = 1024**2

CPU = Platform(
    os="linux", arch="x86_64", cores=4, ram_total_bytes=16 * GIB, ram_available_bytes=12 * GIB
)
H100 = Platform(
    os="linux",
    arch="x86_64",
    cores=16,
    ram_total_bytes=128 * GIB,
    ram_available_bytes=120 * GIB,
    accelerators=(
        Accelerator(
            vendor=Vendor.NVIDIA,
            index=0,
            name="NVIDIA H100 80GB HBM3",
            total_bytes=80 * GIB,
            free_bytes=79 * GIB,
        ),
    ),
)
MAC = Platform(
    os="darwin",
    arch="arm64",
    cores=10,
    ram_total_bytes=32 * GIB,
    ram_available_bytes=20 * GIB,
    accelerators=(
        Accelerator(
            vendor=Vendor.APPLE,
            index=0,
            name="Apple M3 Pro",
            total_bytes=21 * GIB,
            free_bytes=18 * GIB,
        ),
    ),
)
# SmolLM2-135M Q4_1
INFO = ModelInfo(
    architecture="llama",
    parameter_count=134_515_008,
    quant="Q4_1",
    context_length=8192,
    embedding_length=576,
    block_count=30,
    head_count=9,
    head_count_kv=(3,),
    key_length=64,
    value_length=64,
    vocab_size=49152,
    weights_bytes=96_570_000,
)
LLAMA_CPP_HERE = Installation(
    engine=LLAMA_CPP.name, version="0.3.36", python=Path("/env/bin/python"), offloads=False
)
LLAMA_CPP_GPU = Installation(
    engine=LLAMA_CPP.name, version="0.3.36", python=Path("/env/bin/python"), offloads=True
)
LLAMA_SERVER_HERE = Installation(
    engine=LLAMA_SERVER.name, version="b11549", executable=Path("/bin/llama-server")
)
VLLM_HERE = Installation(
    engine=VLLM.name, version="0.32.0", executable=Path("/env/bin/vllm"), offloads=True
)


def with_reserve(usable_bytes: float) -> int:
    """Return how much RAM a machine has of which a model can use so much."""
    return int(min(usable_bytes + 512 * MIB, usable_bytes * 8 / 7))


def missing(engine) -> Missing:
    """Return why `engine` is not here."""
    return Missing(
        engine=engine.name, reason="it is not installed", hint=f"pip install {engine.name}"
    )


def facts(platform=CPU, installed=(LLAMA_CPP_HERE,), **settings) -> Facts:
    """Return facts with some engines installed and the others missing.

    llama-server is there only where it is asked for: most tests decide between the other two.
    """
    here = {item.engine: item for item in installed}
    known = (LLAMA_CPP, VLLM, LLAMA_SERVER) if LLAMA_SERVER.name in here else (LLAMA_CPP, VLLM)
    engines = {engine.name: engine for engine in known}
    absent = {name: missing(engine) for name, engine in engines.items() if name not in here}
    found = DiscoveredEngines(engines=engines, installations=here, missing=absent)
    return Facts(platform=platform, found=found, settings=EngineSettings(**settings))


def bundle(name: str = "m:latest", **changes) -> Bundle:
    """Return a bundle that no file stands behind."""
    values = {
        "name": name,
        "store": "folder",
        "format": Format.GGUF,
        "path": Path("/models/m.gguf"),
        "files": (Path("/models/m.gguf"),),
        "size_bytes": 98_362_432,
        "digest": "0" * 64,
        "modified_s": 0.0,
    }
    return Bundle(**(values | changes))


def make_need(**load) -> Need:
    """Return what a request to chat needs that asks for some of `LoadOptions`."""
    return Need(load=LoadOptions(**load))
