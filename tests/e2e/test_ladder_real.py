"""Real engines that do not start: the next plan serves."""

from __future__ import annotations

import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import MODEL, engine_at, find_engine, weights
from tests.e2e.test_llama_server_real import HI
from tests.server_process import LIMIT_S, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MB = 10**6
ENGINE = ("--engine", "llama-server", "--threads", "2", "--num-parallel", "4")


def command_line() -> list[str]:
    """Return how the engine of these tests is started."""
    at = engine_at()
    if at.is_file():
        return [str(at)]
    child = Path(__file__).parents[2] / "vllama/engines/llamacpp/xllamacpp_child.py"
    return [str(at / "bin" / "python"), "-I", str(child)]


def limited(folder: Path, limit_bytes: int | None) -> dict[str, str]:
    """Return variables that name a llama-server with no more than so much address space."""
    program = folder / "llama-server"
    limit = "unlimited" if limit_bytes is None else str(limit_bytes // 1024)
    run = shlex.join(command_line())
    # an arena takes 64 MB of addresses, and how many threads have one is a matter of luck
    program.write_text(
        f'#!/bin/sh\nexport MALLOC_ARENA_MAX=1\nulimit -v {limit}\nexec {run} "$@"\n'
    )
    program.chmod(0o755)
    return {"VLLAMA_ENGINE_PATHS": f"llama-server={program}"}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return the bytes of address space that are too few for the first plan, by a little."""
    weights()
    if sys.platform != "linux":
        pytest.skip("ulimit -v holds on Linux only")
    home = tmp_path_factory.mktemp("unlimited")
    with Server(home, *ENGINE, "--model", MODEL, fake=False, env=limited(home, None)) as server:
        server.wait_for("ready: http")
        status = Path(f"/proc/{engine_of(server).pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmPeak"))
    # the cache alone is 16384 cells of 23 KB, half of which the second plan does without
    return int(peak.split()[1]) * 1024 - 90 * MB


def engine_of(server: Server) -> psutil.Process:
    """Return the engine's process: what the guard started."""
    return max(server.tree(), key=lambda process: process.memory_info().vms)


def test_out_of_memory(tmp_path: Path, room: int) -> None:
    env = limited(tmp_path, room)
    with ExitStack() as stack:
        server = stack.enter_context(Server(tmp_path / "home", *ENGINE, fake=False, env=env))
        status, reply = server.post("/api/chat", {"model": MODEL, "messages": HI, "stream": False})
        assert (status, reply["done"]) == (200, True), reply
        (row,) = server.get("/api/ps")["models"]
        assert row["context_length"] == 2048
        assert "plan: " in row["cause"] and "memory" in row["cause"]
        # which allocation was one too many decides whether that one step was enough
        first = "a context of 2048 tokens instead of 4096, because the first failed: "
        server.wait_for(f"second plan: {first}")


def test_out_of_memory_with_a_context_that_was_asked_for(tmp_path: Path, room: int) -> None:
    env = limited(tmp_path, room)
    arguments = (*ENGINE, "--context-length", "4096", "--model", MODEL)
    server = Server(tmp_path / "home", *arguments, fake=False, env=env)
    done = subprocess.run(
        server.command, env=server.env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    kept = "as requested: the context of 4096 tokens, 4 parallel requests"
    assert "memory" in done.stderr and kept in done.stderr


@pytest.mark.other_engines
def test_weights_in_an_unknown_format_and_an_unknown_architecture(tmp_path: Path) -> None:
    """Neither engine knows them: both are tried, and the first one's words are told."""
    from tests.tiny import write_tiny_gguf

    find_engine("llama-cpp-python")
    env = find_engine()
    with Server(tmp_path / "home", fake=False, env=env) as server:
        path = write_tiny_gguf(server.models / "odd.gguf", n_ctx=4096)
        whole = path.read_bytes()
        key = b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little")
        assert whole.count(key + b"llama") == 1
        path.write_bytes(whole.replace(key + b"llama", key + b"zzama"))
        status, reply = server.post("/api/chat", {"model": "odd", "messages": HI, "stream": False})
        assert status == 500
        told = reply["error"]
        assert told.index("does not support the architecture 'zzama'") < told.index("tried next: ")
        assert "instead of" in told and told.count("zzama") >= 2
        assert not server.tree() or all("llama" not in p.name() for p in server.tree())
