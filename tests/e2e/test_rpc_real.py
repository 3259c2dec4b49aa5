"""A model on two of llama.cpp's own RPC servers, of which one is killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import MODEL, PATIENCE_S
from tests.server_process import Server

pytestmark = pytest.mark.slow

ASKED = {"model": MODEL, "prompt": "Name three colors.", "options": {"temperature": 0, "seed": 1}}


@pytest.fixture(scope="module")
def engine() -> Path:
    program = Path(os.environ.get("VLLAMA_TEST_LLAMA_SERVER", "/nowhere"))
    if not program.with_name("ggml-rpc-server").exists():
        pytest.skip("VLLAMA_TEST_LLAMA_SERVER has no ggml-rpc-server beside it: make test-release")
    return program


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def rpc_server(engine: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run an RPC server that offers the processor; yield its address and process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [engine.with_name("ggml-rpc-server"), "--device", "CPU", "--threads", "1"]
    process = subprocess.Popen([*argv, "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + PATIENCE_S
        while not listens(port):
            assert process.poll() is None and time.monotonic() < end_s
            time.sleep(0.05)
        yield f"127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


def place(server: Server) -> str:
    (row,) = server.get("/api/ps")["models"]
    return str(row["placement"])


def test_a_model_on_two_machines_survives_the_loss_of_one(engine: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        (one, _), (other, lost) = (stack.enter_context(rpc_server(engine)) for _ in range(2))
        config = tmp_path / "config.toml"
        names = json.dumps([one, other])
        config.write_text(f'[models."{MODEL}"]\ngpus = "spread"\nrpc = {names}\n')
        env = {
            "VLLAMA_ENGINE_PATHS": f"llama-server={engine}", "VLLAMA_CONFIG": str(config),
        }  # fmt: skip
        server = stack.enter_context(Server(tmp_path, fake=False, env=env))
        status, told = server.post("/api/generate", {**ASKED, "stream": False})
        assert status == 200, told
        assert all(f"RPC0[{name}]" in place(server) for name in (one, other)), place(server)
        with server.open("/api/generate", ASKED) as answer:
            rows = [json.loads(answer.readline())]
            lost.kill()
            rows += [json.loads(line) for line in answer.read().splitlines()]
        assert "".join(row["response"] for row in rows) == told["response"], rows[-1]
        assert f"RPC0[{one}]" in place(server) and other not in place(server)
        assert f"left out: RPC server {other} does not respond" in server.output
