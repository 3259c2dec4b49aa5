"""What the tests of conversions share: a model of each kind, and a library with our own store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vllama.models.library import open_library

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
TEXTS = {"tokenizer.json": b"{}", "README.md": b"# card"}
VISION = {"vision_config": {}, "architectures": ["XForConditionalGeneration"]}


def weights(path: Path, metadata: dict[str, str] | None = None) -> Path:
    header: dict[str, object] = {"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    return path


def repository(folder: Path, **config: object) -> dict[str, bytes | Path]:
    folder.mkdir(exist_ok=True)
    return {
        **TEXTS,
        "config.json": json.dumps(CONFIG | config).encode(),
        "model.safetensors": weights(folder / "w.safetensors"),
        "code.py": b"raise SystemExit",
    }


def local(folder: Path, **config: object) -> Path:
    for name, content in repository(folder, **config).items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
    (folder / "w.safetensors").rename(folder / "model.safetensors")
    return folder


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def library(settings, data):
    return open_library(replace(settings, data_dir=data))
