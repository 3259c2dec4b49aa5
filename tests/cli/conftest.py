"""What the tests of the command line share: a stub server, a home of their own, a runner."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.stub import StubServer
from tests.cli.terminal import Terminal
from vllama.cli.app import run

Result = subprocess.CompletedProcess[str]
Vllama = Callable[..., Result]
SILENT = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""What `config.prepare_environment` sets: restored by the fixture only if it was set before."""


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
def vllama(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Vllama:
    """Run a command in this process, its input and output piped."""

    def command(*args: str, stdin: str = "", **more: str) -> Result:
        streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8") for name in ("stdout", "stderr")}
        with monkeypatch.context() as patch:
            for name in list(os.environ):
                patch.delenv(name)
            for name, value in (env | SILENT | more).items():
                patch.setenv(name, value)
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
            for name, stream in streams.items():
                patch.setattr(f"sys.{name}", stream)
            status = run(args)
        shown = {name: _text(stream) for name, stream in streams.items()}
        return Result(args, status, shown["stdout"], shown["stderr"])

    return command


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


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
