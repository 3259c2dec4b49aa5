"""What the tests of the command line share: a stub server, a home of their own, a runner."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.stub import StubServer
from tests.cli.terminal import Terminal

Result = subprocess.CompletedProcess[str]
Vllama = Callable[..., Result]


@pytest.fixture
def stub() -> Iterator[StubServer]:
    server = StubServer()
    server.on("POST /api/show", {"capabilities": ["completion"], "details": {}})
    yield server
    server.close()


@pytest.fixture
def env(tmp_path: Path, stub: StubServer) -> dict[str, str]:
    """An environment that knows nothing of this user's settings and models."""
    home = tmp_path / "home"
    home.mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "OLLAMA_HOST": stub.address,
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def vllama(env: dict[str, str]) -> Vllama:
    """Run a command in a process of its own, its output piped."""

    def run(*args: str, stdin: str | None = None, **more: str) -> Result:
        return subprocess.run(
            [sys.executable, "-m", "vllama", *args],
            input=stdin or "",
            env=env | more,
            text=True,
            capture_output=True,
            timeout=50,
            check=False,
        )

    return run


@pytest.fixture
def terminal(env: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    """Run a command on a terminal."""
    opened: list[Terminal] = []

    def open_terminal(*args: str, **more: str) -> Terminal:
        opened.append(Terminal(args, env | more))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()
