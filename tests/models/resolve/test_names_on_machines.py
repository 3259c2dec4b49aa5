"""Names on made-up machines: what `plan` says of each, and that `pull` says the same.

The repositories have the layouts of real ones. Nothing large moves: only headers are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.facts import (
    CPU,
    GIB,
    H100,
    LLAMA_CPP_GPU,
    LLAMA_CPP_HERE,
    VLLM_HERE,
    facts,
)
from tests.hub import StandInHub
from tests.hub.large import make_gguf, make_model, make_safetensors
from vllama import config
from vllama.base.errors import VllamaError
from vllama.machine.types import Platform
from vllama.models.library import Library, open_library
from vllama.plan.choose import list_loadable_formats
from vllama.plan.form_choice import FitsHere
from vllama.plan.preview import preview_plan
from vllama.plan.types import Facts


def cpu(gib: int) -> Facts:
    """A machine without GPU, with llama.cpp."""
    return facts(replace(CPU, ram_total_bytes=gib * GIB, ram_available_bytes=gib * GIB))


def gpu(gib: int, *, count: int = 1, installed: tuple[Any, ...] = (VLLM_HERE, LLAMA_CPP_HERE)):
    """A machine with NVIDIA GPUs of that size, by default with vLLM and a llama.cpp for CPUs."""
    one = replace(H100.accelerators[0], total_bytes=gib * GIB, free_bytes=gib * GIB)
    cards = tuple(replace(one, index=index) for index in range(count))
    platform: Platform = replace(H100, ram_total_bytes=64 * GIB, accelerators=cards)
    return facts(platform, installed)


def quantized(base: str) -> tuple[str, ...]:
    return ("gguf", f"base_model:{base}", f"base_model:quantized:{base}")


@pytest.fixture(scope="module")
def world() -> Iterator[StandInHub]:
    """A hub with the layouts that people meet."""
    with StandInHub() as hub:
        add_repositories(hub)
        yield hub


def add_repositories(hub: StandInHub) -> None:
    hub.add_repo("Qwen/Qwen3-8B", make_model(16.4, shards=5))
    ours = {
        f"Qwen3-8B-{quant}.gguf": make_gguf(f"Qwen3-8B-{quant}.gguf", quant, 8.2, layers=36)
        for quant in ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")
    }
    hub.add_repo("Qwen/Qwen3-8B-GGUF", ours, tags=quantized("Qwen/Qwen3-8B"))
    smaller = {
        f"Qwen3-8B-{quant}.gguf": make_gguf(f"Qwen3-8B-{quant}.gguf", quant, 8.2, layers=36)
        for quant in ("Q2_K", "Q3_K_M", "Q4_K_M", "Q8_0")
    }
    hub.add_repo("unsloth/Qwen3-8B-GGUF", smaller, tags=quantized("Qwen/Qwen3-8B"))
    fp8 = {"quantization_config": {"quant_method": "fp8"}}
    hub.add_repo(
        "Qwen/Qwen3-8B-FP8", make_model(8.8, shards=2, config=fp8), tags=quantized("Qwen/Qwen3-8B")
    )
    awq = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    hub.add_repo(
        "Qwen/Qwen3-8B-AWQ", make_model(5.7, shards=2, config=awq), tags=quantized("Qwen/Qwen3-8B")
    )
    hub.add_repo("Qwen/Qwen3-0.6B", make_model(1.5))
    hub.add_repo(
        "unsloth/Qwen3-0.6B-GGUF",
        {"Qwen3-0.6B-Q4_K_M.gguf": make_gguf("Qwen3-0.6B-Q4_K_M.gguf", "Q4_K_M", 0.6, width=1024)},
        tags=quantized("Qwen/Qwen3-0.6B"),
    )
    hub.add_repo(
        "ggml-org/gemma-3-4b-it-GGUF",
        {
            f"gemma-3-4b-it-{quant}.gguf": make_gguf(f"gemma-3-4b-it-{quant}.gguf", quant, 3.9)
            for quant in ("Q4_K_M", "Q8_0", "F16")
        },
    )
    hub.add_repo(
        "microsoft/phi-4-gguf",
        {
            f"phi-4-{quant}.gguf": make_gguf(f"phi-4-{quant}.gguf", quant, 14.7, layers=40)
            for quant in ("Q4_K", "Q6_K", "Q8_0", "F16")
        },
    )
    mlx = {"quantization": {"group_size": 64, "bits": 4}}
    hub.add_repo(
        "mlx-community/Qwen3-4B-4bit",
        make_model(2.3, config=mlx),
        tags=("mlx", "base_model:quantized:Qwen/Qwen3-4B"),
    )
    hub.add_repo("acme/Small", make_model(1.0))
    lost = make_model(3.0, shards=3)
    del lost["model-00003-of-00003.safetensors"]
    hub.add_repo("acme/Lost", lost)
    hub.add_repo(
        "acme/My-LoRA",
        {
            "adapter_config.json": json.dumps(
                {"base_model_name_or_path": "Qwen/Qwen3-8B", "peft_type": "LORA"}
            ).encode(),
            "adapter_model.safetensors": b"x" * 99,
            "tokenizer.json": b"{}",
        },
    )
    hub.add_repo(
        "mistralai/Devstral",
        {
            "params.json": json.dumps(MISTRAL).encode(),
            "tekken.json": b"{}",
            "consolidated.safetensors": make_safetensors("consolidated.safetensors", 47),
        },
    )
    hub.add_repo(
        "mistralai/Ministral-8B",
        make_model(16.0)
        | {
            "params.json": json.dumps(MISTRAL).encode(),
            "tekken.json": b"{}",
            "consolidated.safetensors": make_safetensors("consolidated.safetensors", 16),
        },
    )
    hub.add_repo(
        "someone/Lost-Params",
        {"consolidated.safetensors": make_safetensors("consolidated.safetensors", 4)},
    )
    bare = {path: file for path, file in make_model(1.0).items() if "tokenizer" not in path}
    hub.add_repo("acme/No-Tokenizer", bare)
    hub.add_repo("acme/Pictures", {"model_index.json": b"{}", "unet/config.json": b"{}"})
    hub.add_repo(
        "acme/No-Arch-GGUF",
        {"m-Q8_0.gguf": make_gguf("m-Q8_0.gguf", "Q8_0", 8.0, architecture="")},
    )
    hub.add_repo("secret/Private-3B", make_model(6.0), private=True)
    hub.add_repo("meta/Gated-8B", make_model(16.0), gated="manual")
    two = make_model(3.1)
    for n in (1, 2):
        name = f"model.fp32-0000{n}-of-00002.safetensors"
        two[name] = make_safetensors(name, 3.1)
    hub.add_repo("openai/whisper-like", two)
    trained = make_model(2.0)
    for step in (500, 1000):
        for path in ("model.safetensors", "config.json", "trainer_state.json"):
            trained[f"checkpoint-{step}/{path}"] = trained.get(path, b"{}")
    hub.add_repo("someone/My-Finetune-1B", trained)


@dataclass(frozen=True)
class Case:
    """A name on a machine: what is taken, or the words of the refusal; and words of the plan."""

    machine: Facts
    name: str
    takes: str | None = None
    says: tuple[str, ...] = ()
    gigabytes: float | None = None


MISTRAL = {
    "dim": 5120,
    "n_layers": 40,
    "head_dim": 128,
    "hidden_dim": 32768,
    "n_heads": 32,
    "n_kv_heads": 8,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
}
ONLY_VLLM = (VLLM_HERE,)
NOTHING_USES_THE_GPU = (LLAMA_CPP_HERE,)
CASES = [
    # the usual quantization where it fits, the largest that fits elsewhere
    Case(cpu(16), "Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M"),
    Case(cpu(64), "Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M"),
    Case(cpu(512), "Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M"),
    Case(cpu(5), "unsloth/Qwen3-8B-GGUF", "hf.co/unsloth/Qwen3-8B-GGUF:Q3_K_M", ("the largest",)),
    Case(cpu(4), "unsloth/Qwen3-8B-GGUF", "hf.co/unsloth/Qwen3-8B-GGUF:Q2_K", ("the largest",)),
    Case(cpu(2), "unsloth/Qwen3-8B-GGUF", None, ("requires more", "Q2_K, the smallest available")),
    Case(cpu(64), "Qwen/Qwen3-8B:Q8_0", "hf.co/Qwen/Qwen3-8B-GGUF:Q8_0"),
    Case(cpu(64), "qwen3:8b", "hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M"),
    Case(cpu(64), "qwen3:8b-q8_0", "hf.co/Qwen/Qwen3-8B-GGUF:Q8_0"),
    Case(cpu(16), "microsoft/phi-4-gguf", "hf.co/microsoft/phi-4-gguf:Q4_K"),
    Case(cpu(64), "microsoft/phi-4-gguf", "hf.co/microsoft/phi-4-gguf:Q4_K"),
    Case(cpu(64), "microsoft/phi-4-gguf:Q4_K_M", "hf.co/microsoft/phi-4-gguf:Q4_K"),
    # GPUs with vLLM: the whole weights, else quantized ones
    Case(gpu(80), "Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B:latest"),
    Case(gpu(24), "Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B:latest"),
    Case(gpu(24, count=2), "Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B:latest"),
    Case(gpu(12), "Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B-FP8:latest", ("chose FP8",)),
    Case(gpu(10), "Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B-AWQ:latest", ("chose AWQ",)),
    Case(gpu(24, installed=ONLY_VLLM), "Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B:latest"),
    # a GPU that nothing here uses
    Case(
        gpu(24, installed=NOTHING_USES_THE_GPU),
        "Qwen/Qwen3-0.6B",
        "hf.co/unsloth/Qwen3-0.6B-GGUF:Q4_K_M",
        ("vLLM would be preferred here", "engines install vllm", "context length 4096"),
    ),
    Case(
        gpu(24, installed=(LLAMA_CPP_GPU,)),
        "Qwen/Qwen3-0.6B",
        "hf.co/unsloth/Qwen3-0.6B-GGUF:Q4_K_M",
        ("all layers on the GPU", "context length 32768"),
    ),
    # formats that nothing here serves
    Case(cpu(16), "acme/Small", None, ("only safetensors", "vllama convert acme/Small")),
    Case(
        cpu(16),
        "Qwen/Qwen3-8B-AWQ",
        None,
        ("quantized with AWQ", "pull the original model: vllama pull hf.co/Qwen/Qwen3-8B;"),
    ),
    Case(
        cpu(16),
        "mlx-community/Qwen3-4B-4bit",
        None,
        ("packed for Apple's MLX", "vllama pull hf.co/Qwen/Qwen3-4B"),
    ),
    Case(
        gpu(24),
        "mlx-community/Qwen3-4B-4bit",
        None,
        ("packed for Apple's MLX", "vllama pull hf.co/Qwen/Qwen3-4B"),
    ),
    Case(gpu(80), "acme/My-LoRA", None, ("LoRA adapter", "vllama pull hf.co/Qwen/Qwen3-8B")),
    Case(cpu(16), "acme/My-LoRA", None, ("LoRA adapter", "vllama pull hf.co/Qwen/Qwen3-8B")),
    Case(
        gpu(80),
        "mistralai/Devstral",
        "hf.co/mistralai/Devstral:latest",
        ("Mistral's own format", "parsed with mistral"),
        gigabytes=47,
    ),
    Case(cpu(64), "mistralai/Devstral", None, ("Mistral's own format", "GGUF", "vllama engines")),
    Case(gpu(80), "mistralai/Ministral-8B", "hf.co/mistralai/Ministral-8B:latest", gigabytes=16),
    Case(gpu(80), "someone/Lost-Params", None, ("Mistral's own format", "params.json")),
    Case(cpu(16), "acme/Pictures", None, ("diffusers",)),
    # what cannot start
    Case(gpu(24), "acme/No-Tokenizer", None, ("no tokenizer",)),
    Case(cpu(16), "acme/No-Arch-GGUF", None, ("architecture",)),
    Case(gpu(80), "acme/Lost", None, ("lacks model-00003-of-00003.safetensors",)),
    # the model's weights, and not what lies beside them
    Case(gpu(80), "openai/whisper-like", "hf.co/openai/whisper-like:latest", gigabytes=3.1),
    Case(gpu(80), "someone/My-Finetune-1B", "hf.co/someone/My-Finetune-1B:latest", gigabytes=2.0),
    # names that are not quite right
    Case(
        cpu(16),
        "hf.co/ggml-org/gemma-3-4b-it-GGUF:Q5_K_M",
        None,
        ("cannot find ':Q5_K_M'", "Q4_K_M", "Q8_0", "F16"),
    ),
    Case(cpu(16), "Qwen/Qwen3-06B", None, ("did you mean Qwen/Qwen3-0.6B",)),
    Case(cpu(16), "secret/Private-3B", None, ("private", "HF_TOKEN")),
    Case(gpu(80), "meta/Gated-8B", None, ("license", "https://huggingface.co/meta/Gated-8B")),
    Case(cpu(16), "qwen3:0.7b", None, ("qwen3:0.6b", "qwen3:1.7b", "qwen3:4b")),
    Case(cpu(16), "qwne3", None, ("did you mean qwen3",)),
    Case(cpu(16), "Qwen/Qwen3-8B@v9", None, ("no such revision",)),
    Case(cpu(16), "/no/such/model", None, ("cannot find a model at",)),
]


@pytest.fixture
def settings(world: StandInHub, tmp_path: Path, hub_library: None) -> config.Config:
    from huggingface_hub import constants

    environ = {"HF_ENDPOINT": world.url, "HOME": str(tmp_path), "HF_TOKEN": ""}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield config.load({"data_dir": str(tmp_path / "data")}, environ)


@pytest.fixture
def library(settings: config.Config) -> Library:
    return open_library(replace(config.models_settings(settings), package_dirs=()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_name_on_a_machine(
    case: Case, library: Library, settings: config.Config, world: StandInHub
) -> None:
    sent = world.sent("cdn")
    planned = describe(library, case)
    said = json.dumps(planned, ensure_ascii=False)
    for words in case.says:
        assert words in said
    assert ("error" in planned) == (case.takes is None), said
    if case.takes is not None:
        assert planned["model"] == case.takes
        if case.gigabytes is not None:
            assert planned["download_bytes"] == pytest.approx(case.gigabytes * 1e9, rel=0.01)
    else:
        with pytest.raises(VllamaError) as caught:
            library.remote.pull(
                case.name,
                formats=list_loadable_formats(case.machine),
                fits=FitsHere(case.machine),
            )
        verb = caught.value.message.replace("cannot pull", "cannot load")
        assert (verb, bool(caught.value.hint)) == (planned["error"], bool(planned["hint"]))
    assert world.sent("cdn") - sent < 32 * 1024 * 1024


def describe(library: Library, case: Case) -> dict[str, Any]:
    try:
        return preview_plan(library, case.machine, config.environ(), case.name)
    except VllamaError as error:
        return {"error": error.message, "hint": error.hint}
