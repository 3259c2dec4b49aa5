"""A server for generated clients, its description behind a proxy, and the tools that generate."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.lacking import lacking
from tests.server_process import Server

TOOLS = Path(__file__).parents[2] / ".venv" / "clients"


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """Return a running server with a model that chats and one that makes vectors."""
    with Server(tmp_path_factory.mktemp("clients")) as server:
        server.model("plain")
        server.model("vectors", "--embed-per-token")
        yield server


@pytest.fixture
def run_tool(tmp_path):
    """Return a function that runs a program of the tools, and returns what it prints."""

    def run(program: str, *arguments: object, env: dict[str, str] | None = None) -> str:
        path = TOOLS / "bin" / program
        if not path.exists():
            lacking(f"make test-clients installs {program}")
        paths = os.pathsep.join([str(TOOLS / "bin"), os.environ["PATH"]])
        done = subprocess.run(
            [str(path), *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PATH": paths, **(env or {})},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run
