# SPDX-License-Identifier: MIT
"""Stores of any size, written into the home of a server that is not running: for `scale`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import msgspec

from bench.lab import FILL
from bench.startup import MODEL, write_model
from vllama.accounts.keys.key import ApiKey, digest_secret
from vllama.accounts.keys.store import KeyFile
from vllama.accounts.usage.entries import Amounts, Served, name_day
from vllama.accounts.usage.store import UsageStore
from vllama.base import private

REVISION = "c" * 40
VOCABULARY = 5000  # the first listing reads each, which is not what is measured


def own(home: Path) -> dict[str, str]:
    """Return the environment variables of a server that has `home` to itself."""
    return {
        "HOME": str(home),
        "VLLAMA_DATA_DIR": str(home / "data"),
        "VLLAMA_FOLDERS": str(home / "models"),
    }


def write_base(home: Path) -> Path:
    """Write the one GGUF that all models share; return its path."""
    write_model(home / "base", VOCABULARY)
    return home / "base" / f"{MODEL}.gguf"


def fill_folder(home: Path, size: int) -> None:
    """Make models of a folder."""
    base = write_base(home)
    (home / "models").mkdir()
    for number in range(size):
        os.link(base, home / "models" / f"model{number}.gguf")


def fill_own(home: Path, size: int) -> None:
    """Make models that refer to another one, as `create` and `cp` write them."""
    (home / "models").mkdir()
    shutil.move(write_base(home), home / "models" / f"{MODEL}.gguf")
    command = [FILL["vllama"], "cp", MODEL, "copy:0"]
    subprocess.run(command, check=True, env=os.environ | own(home), capture_output=True)
    record = next((home / "data" / "models").rglob("0.json"))
    for number in range(1, size):
        shutil.copy(record, record.with_stem(str(number)))


def fill_ollama(home: Path, size: int) -> None:
    """Make models as Ollama lays them out."""
    root = home / ".ollama" / "models"
    base, digest, none = write_base(home), f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
    (root / "blobs").mkdir(parents=True)
    os.link(base, root / "blobs" / digest.replace(":", "-"))
    (root / "blobs" / none.replace(":", "-")).write_text("{}")
    kind, size_bytes = "application/vnd.ollama.image.model", base.stat().st_size
    layers = [{"mediaType": kind, "digest": digest, "size": size_bytes}]
    config = {"digest": none, "size": 2, "mediaType": "application/vnd.docker.container.image.v1"}
    manifest = json.dumps({"schemaVersion": 2, "config": config, "layers": layers})
    for number in range(size):
        folder = root / "manifests" / "registry.ollama.ai" / "library" / f"model{number}"
        folder.mkdir(parents=True)
        (folder / "latest").write_text(manifest)


def fill_hub(home: Path, size: int) -> None:
    """Make repositories in the hub's cache."""
    base = write_base(home)
    for number in range(size):
        repo = home / ".cache" / "huggingface" / "hub" / f"models--org--model{number}-GGUF"
        (repo / "snapshots" / REVISION).mkdir(parents=True)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(REVISION)
        os.link(base, repo / "snapshots" / REVISION / f"model{number}.Q8_0.gguf")


def fill_keys(home: Path, size: int) -> None:
    """Make keys; their secrets are sk-0, sk-1, ..."""
    made = [
        ApiKey(name=f"k{n}", digest=digest_secret(f"sk-{n}"), owner=f"{n}") for n in range(size)
    ]
    private.make_folder(home / "data")
    private.replace(home / "data" / "keys.json", msgspec.json.encode(KeyFile(tuple(made))))


def fill_usage(home: Path, size: int) -> None:
    """Make the usage of so many days, of 20 keys and 5 models each."""
    private.make_folder(home / "data")
    store = UsageStore(home / "data" / "usage")
    today = int(time.time() // 86_400)
    amounts = Amounts(requests=100, prompt_tokens=10_000, generated_tokens=5_000)
    entries = [
        Served(name_day((today - day) * 86_400), f"k{key}", f"model{model}", amounts, f"{key}")
        for day in range(size)
        for key in range(20)
        for model in range(5)
    ]
    store.fold("", 0, entries, time.time())
    store.close()
