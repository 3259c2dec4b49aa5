"""`show --modelfile` → `create` gives the same model, with everything that a model can have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.registry import OllamaModel, store
from tests.tiny import write_tiny_gguf, write_tiny_lora

PARAMETERS = {
    "temperature": 0.5,
    "stop": ["<|a|>", '"""x', "a\nb", 'say "so"'],
    "num_ctx": 2048,
    "penalize_newline": True,
    "seed": 7,
}
MESSAGES = [
    {"role": "user", "content": 'hi """ there'},
    {"role": "assistant", "content": 'yo\n\n"'},
]
OWN = {"name", "modelfile", "modified_at", "details"}
"""What names a model, its base or its time; all else must be the same."""


@pytest.fixture
def full(tmp_path: Path, env: dict[str, str]) -> str:
    """A model of Ollama's store with every kind of layer."""
    weights = write_tiny_gguf(tmp_path / "tiny.gguf")
    layers = [
        ("model", weights),
        ("projector", _projector(tmp_path / "mmproj.gguf")),
        ("adapter", write_tiny_lora(tmp_path / "lora.gguf")),
        ("template", '{{ .System }} "q" {{ .Prompt }}\n'),
        ("system", 'Be "brief".\nAlways.'),
        ("params", PARAMETERS),
        ("messages", MESSAGES),
        ("license", "One"),
        ("license", "Two\n\n"),
    ]
    root = tmp_path / "ollama"
    store(root, "registry.ollama.ai/library/full:1b", OllamaModel(layers))
    env |= {"OLLAMA_MODELS": str(root), "OLLAMA_HOST": "127.0.0.1:9"}
    return "full:1b"


def _projector(path: Path) -> Path:
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_tensor("v.patch_embd.weight", np.zeros((4, 4), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shown(vllama: Vllama, name: str) -> tuple[str, dict[str, object]]:
    text = vllama("show", name, "--modelfile")
    assert text.returncode == 0, text.stderr
    about = json.loads(vllama("show", name, "--json").stdout)
    # its first lines name the model itself
    return text.stdout.split("\n\n", 1)[1], {k: v for k, v in about.items() if k not in OWN}


def test_a_model_of_all_parts(full: str, vllama: Vllama) -> None:
    text, about = shown(vllama, full)
    assert [line.split()[0] for line in text.splitlines()[:3]] == ["FROM", "FROM", "ADAPTER"]
    done = vllama("create", "copy", "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr
    copied, same = shown(vllama, "copy")
    # files of another store stay there, and the model of that store is named instead
    assert copied.startswith(f"FROM {full}\nADAPTER ")
    assert same == about
    assert copied.partition("\nTEMPLATE")[2] == text.partition("\nTEMPLATE")[2]
    assert vllama("create", "again", "-f", "-", stdin=copied).returncode == 0
    assert shown(vllama, "again") == (copied, about)
    # and one that stands on a model with a name
    order = f"FROM {full}\nPARAMETER stop new\nSYSTEM other\n"
    assert vllama("create", "child", "-f", "-", stdin=order).returncode == 0
    text, about = shown(vllama, "child")
    assert text.startswith(f"FROM {full}\n") and about["system"] == "other"
    assert vllama("create", "twin", "-f", "-", stdin=text).returncode == 0
    twin, same = shown(vllama, "twin")
    assert (twin.partition("\nTEMPLATE")[2], same) == (text.partition("\nTEMPLATE")[2], about)
    assert vllama("cp", "twin", "team/third:v2").returncode == 0
    assert shown(vllama, "team/third:v2") == (twin, about)
