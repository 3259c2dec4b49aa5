"""llama.cpp's own build, packed as in its releases: installed from a mirror, it serves a model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import MODEL
from tests.engines.releases import Releases
from tests.server_process import Server
from tests.tiny import write_tiny_gguf
from vllama.engines.llamacpp.llama_server import BUILDS, TAG
from vllama.models.headers.gguf.header import read_header

pytestmark = pytest.mark.slow


def test_a_packed_build_is_installed_and_serves(tmp_path: Path) -> None:
    packed = os.environ.get("TEST_ARCHIVE")
    if not packed:
        pytest.skip("TEST_ARCHIVE names no archive of llama.cpp; run: make test-release")
    data = Path(packed).read_bytes()
    names = [way.archive.name.format(tag=TAG) for way in BUILDS if way.archive is not None]
    home = {"VLLAMA_DATA_DIR": str(tmp_path / "data")}
    with Releases({TAG: dict.fromkeys(names, data)}) as releases:
        releases.faults = {"cut once"}
        command = ["engines", "install", "llama-server", "--yes", "--version", TAG]
        env = os.environ | home | {"VLLAMA_RELEASES_URL": releases.url}
        subprocess.run([sys.executable, "-m", "vllama", *command], env=env, check=True)
    large, small = write_tiny_gguf(tmp_path / "large.gguf"), tmp_path / "small.gguf"
    command = ["convert", str(large), "-q", "Q4_K_M", "-o", str(small)]
    subprocess.run([sys.executable, "-m", "vllama", *command], env=os.environ | home, check=True)
    assert (
        read_header(small).metadata["general.file_type"] == 15
    )  # Q4_K_M, by the archive's own llama-quantize
    options = ("--engine", "llama-server", "--model", MODEL)
    with Server(tmp_path, *options, fake=False, env=home) as server:
        server.wait_for("ready: http")
        asked = {"model": MODEL, "prompt": "Hello", "stream": False, "options": {"num_predict": 8}}
        status, reply = server.post("/api/generate", asked)
        assert status == 200 and reply["eval_count"] == 8
        (row,) = server.get("/api/ps")["models"]
        assert row["engine"] == "llama-server"
